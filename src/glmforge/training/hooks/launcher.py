"""Tell the program that started this rank how far it is: for its log, and for the record of how it ended.

`glmforge_ops.jobs.ranks` names a small file of the node in GLMFORGE_STEP_FILE and reads it whenever it writes a line.
Eight bytes are written in place after each step; nothing waits for it, and nothing of the run depends on it.
"""

import logging
import os
from collections.abc import Mapping

from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

STEP_FILE_VARIABLE = "GLMFORGE_STEP_FILE"


class LauncherHook(Hook):
    """Writes the number of steps that are done into the launcher's file, if there is one."""

    name = "launcher"
    priority = Priority.MEASURE

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._path = environment.get(STEP_FILE_VARIABLE)
        self._file: int | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        if self._path:
            try:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                logger.warning("%s: the launcher's file cannot be opened (%s)", self._path, error.strerror)
        self._write(trainer.state.step)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self._write(trainer.state.step)

    def on_rollback(self, trainer: Trainer) -> None:
        self._write(trainer.state.step)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, step: int) -> None:
        if self._file is None:
            return
        try:
            os.pwrite(self._file, step.to_bytes(8, "little"), 0)
        except OSError as error:  # the node's memory is full: the run goes on without
            logger.warning("%s: cannot be written to (%s)", self._path, error.strerror)
            self.close()
