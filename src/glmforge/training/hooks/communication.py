"""Measure what one step in so many communicates along each axis of the layout.

All ranks measure the same steps: a rank that measures alone would be late everywhere, and the others' waiting would
pass for communication. The first step of a process is never measured, since it also opens connections and compiles.
"""

from contextlib import ExitStack

from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.communication import Traffic, measure_communication
from glmforge.training.order import Stage
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class CommunicationHook(Hook):
    """Measures each step whose number one of `every` divides; must be the first hook, so that no other's work is
    measured.

    Attributes:
        paused: measure nothing, as while a profile is being taken; alike on all ranks.
        measured: what the step that has just ended communicated, None if it was not measured.
    """

    name = "communication"
    stage = Stage.MEASURE

    def __init__(self, *every: int) -> None:
        self.every = every
        self.paused = False
        self.measured: dict[str, Traffic] | None = None
        self._block = ExitStack()
        self._warm = False
        self._traffic: dict[str, Traffic] = {}

    def on_step_start(self, trainer: Trainer) -> None:
        """Begin to measure if the step that is about to begin is due."""
        self.measured = None
        due = any((trainer.state.step + 1) % every == 0 for every in self.every)
        if self._warm and due and not self.paused:
            self.measured = self._traffic = self._block.enter_context(measure_communication(trainer.world))
        self._warm = True

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self._block.close()

    def close(self) -> None:
        self._block.close()

    def take_record(self) -> Record:
        """Seconds and bytes per axis of the last measured step, once; empty if none was measured since."""
        traffic, self._traffic = self._traffic, {}
        seconds = {f"comm_seconds_{axis}": found.seconds for axis, found in traffic.items()}
        return make_record(**seconds, **{f"comm_bytes_{axis}": found.bytes for axis, found in traffic.items()})
