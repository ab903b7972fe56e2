"""`checkpoint`: which checkpoints are written where, and which are kept."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict, refuse


class KeepBestConfig(Strict):
    """The checkpoint that is best by what was measured at its step is kept, besides the others."""

    metric: str = Field(description="bits_per_byte or nll of held-out text, or a benchmark of observe.benchmarks")
    mode: Literal["max", "min"] = Field(description="which value is best")


class CheckpointConfig(Strict):
    """Two tiers: lasting checkpoints in the run's directory, and ephemeral ones to lose as few steps as possible."""

    dir: YamlPath | None = Field(
        default=None,
        description="where lasting checkpoints are written, of this run alone, on storage that all nodes share; "
        "<output_dir>/checkpoints becomes a link there. None is that directory itself",
    )
    every_steps: PositiveInt | None = Field(default=None, description="lasting checkpoints; None: only the final one")
    keep_last: PositiveInt = Field(default=3, description="lasting checkpoints that are kept")
    keep_every_steps: PositiveInt | None = Field(default=None, description="these are never deleted")
    keep_best: KeepBestConfig | None = Field(
        default=None, description="a lasting one that keep_last does not delete; None keeps none for its results"
    )
    save_final: bool = True
    ephemeral_every_steps: PositiveInt | None = Field(default=None, description="ephemeral checkpoints; None: none")
    keep_ephemeral: PositiveInt = Field(default=2, description="ephemeral checkpoints that are kept")
    mode: Literal["full", "lite"] = Field(
        default="full",
        description="of a run with adapters: full has optimizer states and generators and resumes exactly; lite has "
        "weights and position, and moments begin anew",
    )
    local_dir: YamlPath | None = Field(
        default=None,
        description="directory on each node's own disk where every checkpoint is written first; lasting ones are then "
        "copied to the run's directory in the background; ephemeral ones, and those of adapters, stay. None writes "
        "to the run's directory",
    )
    background: bool = Field(
        default=True, description="training waits for a copy in memory only; false waits until everything is on disk"
    )
    verify_after_save: bool = Field(default=True, description="read each checkpoint back and compare checksums")
    max_failed_saves: NonNegativeInt = Field(
        default=3, description="saves in a row that may fail (on a full disk, say) before the run stops"
    )

    @model_validator(mode="after")
    def _check_tiers(self) -> Self:
        often, rarely = self.ephemeral_every_steps, self.every_steps
        if often is not None and rarely is not None and often >= rarely:
            refuse(
                "ephemeral_every_steps",
                f"{often} is not more often than every_steps = {rarely}; make it smaller, or leave it out",
            )
        return self
