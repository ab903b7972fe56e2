"""Take commands for the live run from its control file; see `glmforge.observe.control`.

Only rank 0 looks: what it finds becomes a vote, which all ranks hear of within the step.
"""

import logging
from pathlib import Path

from glmforge.observe.control import REFUSED, TAKEN, Command, ControlError, parse_command, take_command
from glmforge.training.order import Priority
from glmforge.training.profiling import Profiling
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)


class ControlHook(Hook):
    """Looks before each step. A command that was given before this process began is refused: it was meant for another.

    Args:
        output_dir: the run directory.
        profiling: where a profile is requested.
    """

    name = "control"
    priority = Priority.COMMAND

    def __init__(self, output_dir: Path, profiling: Profiling) -> None:
        self.root, self.profiling = output_dir, profiling
        self._warned = False

    def on_train_start(self, trainer: Trainer) -> None:
        text = self._take() if trainer.world.is_main else None
        if text is not None:
            self._refuse(trainer, f"{text.strip()!r} was sent before the run was restarted; send it again")

    def on_step_start(self, trainer: Trainer) -> None:
        text = self._take() if trainer.world.is_main else None
        if text is None:
            return
        try:
            command = parse_command(text)
        except ControlError as error:
            self._refuse(trainer, str(error))
        else:
            self._obey(trainer, command)

    def on_train_end(self, trainer: Trainer) -> None:
        """Record that the run has ended, so that it receives no more commands."""
        state = trainer.state
        done = state.stopped is None and state.finished
        detail = "" if done else state.stopped or "requested by the control file"
        trainer.event("finished" if done else "stopped", detail)

    def _obey(self, trainer: Trainer, command: Command) -> None:
        if command.name == "profile" and not self.profiling.request(command.steps):
            self._refuse(trainer, "a profile is already running; send it again afterwards")
            return
        trainer.vote(command.name)
        trainer.event(TAKEN, str(command))

    def _refuse(self, trainer: Trainer, reason: str) -> None:
        logger.warning("control refused: %s", reason)
        trainer.event(REFUSED, reason)

    def _take(self) -> str | None:
        """A control file that cannot be read is no reason to end a run: it is said once."""
        try:
            return take_command(self.root)
        except OSError as error:
            if not self._warned:
                logger.warning("the control file cannot be read: %s", error)
            self._warned = True
            return None
