"""A run whose directory was taken over stops, before and after each step, and says so in one line.

Rank 0 alone holds the directory; when it raises, the other ranks hear why (`glmforge.parallel.peers`). Everything that
is written in between asks for itself (`ensure_writable`): this hook ends a run that has nothing to write.
"""

from pathlib import Path

from glmforge.runtime.lease import ensure_writable
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class RunLockHook(Hook):
    """Raises `LeaseLostError` on rank 0, before the others do anything more."""

    name = "run lock"
    priority = Priority.GUARD

    def __init__(self, output_dir: Path) -> None:
        self.root = output_dir

    def on_step_start(self, trainer: Trainer) -> None:
        ensure_writable(self.root)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        ensure_writable(self.root)
