"""What ends a run before its time, and what takes it back."""

from glmforge.errors import GlmforgeError
from glmforge.runtime.interrupts import INTERRUPTED


class DivergedError(GlmforgeError):
    """The loss or gradient stayed non-finite longer than the run allows, or the loss spiked too often."""


class Preempted(GlmforgeError):
    """The run was preempted; it has been saved and should be restarted."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Interrupted(Preempted):
    """The same, by a person: no launcher should restart it."""

    exit_code = INTERRUPTED


class RollBack(Exception):
    """Raised by a hook in `on_step_end`, on all ranks alike: go back, and omit samples of a phase.

    Attributes:
        phase: name of the phase.
        first_sample, stop_sample: the samples to omit.
        before_step: the checkpoint to go back to is of an earlier step than this.
    """

    def __init__(self, *, phase: str, first_sample: int, stop_sample: int, before_step: int) -> None:
        super().__init__(f"phase '{phase}', samples [{first_sample}, {stop_sample}), before step {before_step}")
        self.phase, self.before_step = phase, before_step
        self.first_sample, self.stop_sample = first_sample, stop_sample
