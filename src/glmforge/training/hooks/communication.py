"""Measure every n steps what is communicated along each axis of the layout.

All ranks measure the same steps: a rank that measures alone would be late everywhere, and the others' waiting would
pass for communication. The first step of a process is never measured, since it also opens connections and compiles.
"""

from contextlib import ExitStack

from glmforge.parallel.communication import COMMUNICATION_AXES, Traffic, measure_communication
from glmforge.training.order import Priority
from glmforge.training.profiling import Profiling
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class CommunicationHook(Hook):
    """Records `comm_*` of each step whose number one of `every` divides; of none while a profile is being taken."""

    name = "communication"
    priority = Priority.MEASURE

    def __init__(self, profiling: Profiling, *every: int) -> None:
        self.profiling, self.every = profiling, every
        self._block = ExitStack()
        self._warm = False
        self._traffic: dict[str, Traffic] | None = None

    def on_step_start(self, trainer: Trainer) -> None:
        """Begin to measure if the step that is about to begin is due."""
        self._traffic = None
        due = any((trainer.state.step + 1) % every == 0 for every in self.every)
        if self._warm and due and not self.profiling.steps_left:
            self._traffic = self._block.enter_context(measure_communication(trainer.world))
        self._warm = True

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self._block.close()
        if self._traffic is not None:
            trainer.record(**_metrics(self._traffic))

    def close(self) -> None:
        self._block.close()


def _metrics(traffic: dict[str, Traffic]) -> dict[str, float | None]:
    """Seconds and bytes of every axis; None where nothing was communicated, or the time is not known."""
    found = {axis: traffic.get(axis) for axis in COMMUNICATION_AXES}
    seconds = {f"comm_seconds_{axis}": one.seconds if one else None for axis, one in found.items()}
    return seconds | {f"comm_bytes_{axis}": one.bytes if one else None for axis, one in found.items()}
