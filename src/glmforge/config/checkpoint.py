"""`checkpoint`: which checkpoints are written where, and which are kept."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict, refuse


class KeepBestConfig(Strict):
    """Also keep the checkpoint with the best value of a metric at its step."""

    metric: str = Field(description="bits_per_byte or nll of held-out text, or a benchmark of observe.benchmarks")
    mode: Literal["max", "min"] = Field(description="which value is best")


class CheckpointConfig(Strict):
    """Two tiers: permanent checkpoints in the run's directory, and ephemeral ones to lose as few steps as possible."""

    dir: YamlPath | None = Field(
        default=None,
        description="where permanent checkpoints are written: a directory for this run alone, on storage that all "
        "nodes share; <output_dir>/checkpoints becomes a link to it. None: <output_dir>/checkpoints itself",
    )
    every_steps: PositiveInt | None = Field(
        default=None, description="steps between permanent checkpoints; None: only the final one"
    )
    keep_last: PositiveInt = Field(default=3, description="permanent checkpoints to keep")
    keep_every_steps: PositiveInt | None = Field(default=None, description="these are never deleted")
    keep_best: KeepBestConfig | None = Field(
        default=None, description="keep the best permanent one besides; None: by age alone"
    )
    save_final: bool = True
    ephemeral_every_steps: PositiveInt | None = Field(
        default=None, description="steps between ephemeral checkpoints; None: no ephemeral checkpoints"
    )
    keep_ephemeral: PositiveInt = Field(default=2, description="ephemeral checkpoints to keep")
    mode: Literal["full", "lite"] = Field(
        default="full",
        description="for runs with adapters. full: with optimizer states and RNG, resumes exactly; lite: weights and "
        "data position only, optimizer moments restart",
    )
    local_dir: YamlPath | None = Field(
        default=None,
        description="directory on each node's local disk where every checkpoint is written first. Permanent ones are "
        "then copied to the run's directory in the background; ephemeral and adapter checkpoints stay local. None: "
        "write to the run's directory",
    )
    background: bool = Field(
        default=True, description="training waits for a copy in memory only; false waits until everything is on disk"
    )
    verify_after_save: bool = Field(default=True, description="read each checkpoint back and compare checksums")
    max_failed_saves: NonNegativeInt = Field(
        default=3, description="consecutive saves that may fail (such as on a full disk) before the run stops"
    )

    @model_validator(mode="after")
    def _check_tiers(self) -> Self:
        often, rarely = self.ephemeral_every_steps, self.every_steps
        if often is not None and rarely is not None and often >= rarely:
            refuse(
                "ephemeral_every_steps",
                f"{often} must be less than every_steps = {rarely}; lower it or remove it",
            )
        return self
