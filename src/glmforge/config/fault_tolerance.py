"""`fault_tolerance`: what a run survives, and when it gives up."""

import re

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from glmforge.config.model import Strict


class SpikeConfig(Strict):
    """After a loss spike go back to a checkpoint before it and leave out the batches of the spike."""

    window: int = Field(default=128, ge=8, description="steps that the loss is compared with")
    threshold: PositiveFloat = Field(
        default=10.0, description="robust standard deviations (from the median absolute deviation) above their median"
    )
    patience: PositiveInt = Field(default=3, description="steps in a row above it that make a spike")
    max_rollbacks: PositiveInt = Field(default=5, description="of a run, before it stops")


class FaultToleranceConfig(Strict):
    """What a run survives."""

    resume: str = Field(
        default="auto",
        description="auto resumes from the newest whole checkpoint; never refuses a directory that has any; step-900 "
        "resumes from that of step 900 and keeps later ones aside, once: started again, the run goes on from its "
        "newest",
    )
    max_nonfinite_steps: NonNegativeInt = Field(
        default=0,
        description="consecutive steps with a non-finite loss or gradient to skip before the run stops",
    )
    spikes: SpikeConfig | None = Field(default=None, description="None never goes back")
    hang_timeout_s: PositiveFloat | None = Field(
        default=540.0,
        description="a rank without a sign of progress, its own or of a rank that is busy (trainer.alive), for so long "
        "writes all stacks to the run's directory and ends; less than parallel.process_group_timeout_s, which leaves "
        "none. None: never",
    )
    min_nodes: PositiveInt = Field(default=1, description="the run continues on no fewer nodes than this")
    lock_lease_s: PositiveFloat = Field(
        default=60.0,
        description="the run's directory is free again when its holder on another machine gave no sign of life for so "
        "long; longer than the storage needs to show one machine what another one writes",
    )

    @property
    def resume_step(self) -> int | None:
        """The step of the checkpoint to resume from; None if `resume` names none."""
        return int(self.resume.removeprefix("step-")) if self.resume.startswith("step-") else None

    @field_validator("resume")
    @classmethod
    def _check_resume(cls, value: str) -> str:
        if not re.fullmatch(r"auto|never|step-\d{1,18}", value, re.ASCII):
            raise PydanticCustomError("resume", "is neither 'auto', 'never' nor a step, such as 'step-900'")
        return value
