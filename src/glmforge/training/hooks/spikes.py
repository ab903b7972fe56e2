"""Go back to before a loss spike, and omit the batches that it came with.

A spike is some steps in a row whose loss lies far above those before. The way out is that of the large runs (PaLM,
Chowdhery et al., 2022, arXiv 2204.02311, section 5.1): a checkpoint from before, then on without the batches around it.
The loss is the same number on all ranks, so they decide alike without asking each other.

The loss is compared with that of the same phase: another mixture has another loss. So a spike never reaches over the
border of two phases, and none is seen until a phase has a quarter of the window behind it. If there is no checkpoint
from before the spike, the trainer says so and ends.
"""

import logging
from typing import Any, NoReturn

from glmforge.config.fault_tolerance import SpikeConfig
from glmforge.training.detect import RobustWindow
from glmforge.training.errors import DivergedError, RollBack
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from glmforge.training.votes import ENDING

logger = logging.getLogger(__name__)


class SpikeHook(Hook):
    """Raises `RollBack` after `patience` steps in a row above the threshold, `DivergedError` at one spike too many.

    A loss that is not finite is above. When the run is about to save and end, going back is left to its next start.
    """

    name = "spikes"
    priority = Priority.JUDGE

    def __init__(self, config: SpikeConfig) -> None:
        self.config = config
        self._window = RobustWindow(config.window, config.threshold)
        self._phase: str | None = None
        self._streak: list[dict[str, Any]] = []

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if not self._is_spike():
            self._judge(trainer, result)
        if self._is_spike() and not result.votes & ENDING:
            if "save" in result.votes:
                trainer.vote("save")  # not lost: saved after going back
            self._go_back(trainer)

    def on_rollback(self, trainer: Trainer) -> None:
        self._streak = []

    def state_dict(self) -> dict[str, Any]:
        return {"phase": self._phase, "window": self._window.state_dict(), "streak": [dict(s) for s in self._streak]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._phase = state.get("phase")
        self._window.load_state_dict(state.get("window", {}))
        self._streak = [dict(step) for step in state.get("streak", ())]

    def _is_spike(self) -> bool:
        return len(self._streak) >= self.config.patience

    def _judge(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.phase.name != self._phase:
            self._phase = trainer.phase.name
            self._window.clear()
            self._streak = []
        loss, batch = result.main_loss, result.samples
        if self._window.is_outlier(loss):
            samples = {"first": batch.first, "stop": batch.first + batch.size}
            self._streak.append({"step": trainer.state.step, "loss": f"{loss:.4g}"} | samples)
        else:
            self._streak = []
            self._window.add(loss)

    def _go_back(self, trainer: Trainer) -> NoReturn:
        assert self._phase is not None
        first, last = self._streak[0], self._streak[-1]
        losses = ", ".join(step["loss"] for step in self._streak)
        what = (
            f"loss {losses} in steps {first['step']:,} to {last['step']:,}, median before {self._window.median:.4g}, "
            f"samples [{first['first']}, {last['stop']}) of phase '{self._phase}'"
        )
        if trainer.world.is_main:
            logger.warning("loss spike: %s", what)
        trainer.event("spike", what)
        if trainer.state.rollbacks >= self.config.max_rollbacks:
            raise DivergedError(
                f"step {trainer.state.step}: {what}; the run has rolled back {trainer.state.rollbacks} times already "
                f"(fault_tolerance.spikes.max_rollbacks = {self.config.max_rollbacks}); lower optim.lr, or check the "
                "samples"
            )
        raise RollBack(
            phase=self._phase,
            first_sample=first["first"],
            stop_sample=last["stop"],
            before_step=first["step"],
        )
