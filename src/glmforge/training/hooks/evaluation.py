"""Evaluate every so many steps and after the last. How is the recipe's function."""

from collections.abc import Callable, Sequence

from glmforge.observe.bus import Kind
from glmforge.observe.metrics import Record
from glmforge.parallel.model import ParallelModel
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

Evaluate = Callable[[ParallelModel], Sequence[Record]]
"""All ranks call it together; gives one record per held-out source (`source`, `bits_per_byte`, ...)."""


class EvaluationHook(Hook):
    """Writes the records of `evaluate`, with step and tokens, and shows them to all hooks (`on_evaluation`)."""

    name = "evaluation"
    priority = Priority.EVALUATE

    def __init__(self, every_steps: int, evaluate: Evaluate) -> None:
        self.every_steps = every_steps
        self.evaluate = evaluate

    def on_train_start(self, trainer: Trainer) -> None:
        """Lets a run go on that was stopped early and is no longer told to stop."""
        if trainer.config.observe.early_stopping is None:
            trainer.state.stopped = None

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        state = trainer.state
        if state.step % self.every_steps and not state.is_done:
            return
        with trainer.model.evaluating():
            records = self.evaluate(trainer.model)
        for record in records:
            trainer.bus.write(Kind.EVALUATION, {"step": state.step, "tokens": state.tokens} | record)
        for hook in trainer.hooks:
            hook.on_evaluation(trainer, records)

    def on_rollback(self, trainer: Trainer) -> None:
        self.on_train_start(trainer)
