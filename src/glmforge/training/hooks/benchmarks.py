"""Have the model answer benchmarks at regular steps and after the last one. The recipe chooses how."""

from collections.abc import Sequence
from typing import Any, Protocol

from glmforge.observe.alive import Alive
from glmforge.observe.bus import Kind
from glmforge.observe.metrics import Record
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class Asker(Protocol):
    """Asks a model, as `Backend.evaluating` gives it. All ranks call its methods together."""

    def check(self, model: Any) -> None:
        """Raise a `GlmforgeError` if it cannot be done."""
        ...

    def ask(self, model: Any, alive: Alive) -> Sequence[Record]:
        """One record per benchmark, the same on all ranks. Calls `alive` while it works."""
        ...


class BenchmarksHook(Hook):
    """Writes the records of `asker`, with step and tokens, and shows them to all hooks (`on_benchmarks`).

    With `from_given_weights` what the weights answer before the first step is written, too, as step 0. No hook is shown
    it: there is no checkpoint of it to keep.
    """

    name = "benchmarks"
    priority = Priority.EVALUATE

    def __init__(self, every_steps: int, asker: Asker, *, from_given_weights: bool = False) -> None:
        self.every_steps, self.asker, self.from_given_weights = every_steps, asker, from_given_weights

    def on_train_start(self, trainer: Trainer) -> None:
        """Also continues a run that was stopped early, once early stopping is removed from its configuration."""
        if trainer.config.observe.early_stopping is None:
            trainer.state.stopped = None
        with trainer.backend.evaluating() as model:
            self.asker.check(model)
        if self.from_given_weights and trainer.state.step == 0:
            self._records(trainer)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        state = trainer.state
        if state.step % self.every_steps and not state.is_done:
            return
        records = self._records(trainer)
        for hook in trainer.hooks:
            hook.on_benchmarks(trainer, records)

    def _records(self, trainer: Trainer) -> Sequence[Record]:
        state = trainer.state
        with trainer.backend.evaluating() as model:
            records = self.asker.ask(model, trainer.alive)
        for record in records:
            trainer.bus.write(Kind.BENCHMARK, {"step": state.step, "tokens": state.tokens} | record)
        return records
