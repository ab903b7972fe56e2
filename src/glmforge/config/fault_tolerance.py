"""`fault_tolerance`: what a run survives, and when it gives up."""

import re

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from glmforge.config.model import Strict


class SpikeConfig(Strict):
    """After a loss spike go back to a checkpoint before it and omit the batches of the spike."""

    window: int = Field(default=128, ge=8, description="window of window of steps that the loss is compared with")
    threshold: PositiveFloat = Field(
        default=10.0,
        description="threshold: robust standard deviations (from the median absolute deviation) above "
        "the window's median",
    )
    patience: PositiveInt = Field(default=3, description="consecutive steps above the threshold that count as a spike")
    max_rollbacks: PositiveInt = Field(default=5, description="of a run, before it stops")


class FaultToleranceConfig(Strict):
    """What a run survives."""

    resume: str = Field(
        default="auto",
        description="auto: resume from the newest complete checkpoint. never: refuse a directory that has "
        "checkpoints. step-900: resume from step 900 and set later checkpoints aside; applies once, the next start "
        "resumes from the newest",
    )
    max_nonfinite_steps: NonNegativeInt = Field(
        default=0,
        description="consecutive steps with a non-finite loss or gradient to skip before the run stops",
    )
    spikes: SpikeConfig | None = Field(default=None, description="None: no rollback")
    hang_timeout_s: PositiveFloat | None = Field(
        default=540.0,
        description="seconds without progress of this rank, or of any busy rank (trainer.alive), after which a rank "
        "writes all stacks to the run's directory and exits; must be less than parallel.process_group_timeout_s, "
        "which writes no stacks. None: off",
    )
    min_nodes: PositiveInt = Field(default=1, description="fewest nodes the run continues on")
    lock_lease_s: PositiveFloat = Field(
        default=60.0,
        description="seconds without a heartbeat after which the run lock of another machine expires; must exceed "
        "the storage's delay in showing one machine's writes to another",
    )

    @property
    def resume_step(self) -> int | None:
        """The step of the checkpoint to resume from; None if `resume` names none."""
        return int(self.resume.removeprefix("step-")) if self.resume.startswith("step-") else None

    @field_validator("resume")
    @classmethod
    def _check_resume(cls, value: str) -> str:
        if not re.fullmatch(r"auto|never|step-\d{1,18}", value, re.ASCII):
            raise PydanticCustomError("resume", "invalid value; use 'auto', 'never' or a step such as 'step-900'")
        return value
