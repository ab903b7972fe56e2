"""Evaluate every n steps and after the last. The recipe's function does it.

A run that continues from given weights is compared with them: what they score on each source is measured once, before
the first step, and stands beside what the model scores now. On text of the kind that they were trained on, the
difference is what has been forgotten.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glmforge.observe.alive import Alive
from glmforge.observe.bus import Kind
from glmforge.observe.metrics import Record
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

Evaluate = Callable[[Any, Alive], Sequence[Record]]
"""Takes the model as `Backend.evaluating` gives it and `Trainer.alive`, which it calls while it works. Gives a record
per held-out source (`source`, `bits_per_byte`, ...). All ranks call it together."""


class EvaluationHook(Hook):
    """Writes the records of `evaluate`, with step and tokens, and shows them to all hooks (`on_evaluation`).

    With `from_given_weights` records also tell the bits per byte of the weights before the first step. They are part
    of the hook's state, so a resumed run has them; one that was begun without them goes on without them.
    """

    name = "evaluation"
    priority = Priority.EVALUATE

    def __init__(self, every_steps: int, evaluate: Evaluate, *, from_given_weights: bool = False) -> None:
        self.every_steps = every_steps
        self.evaluate = evaluate
        self.from_given_weights = from_given_weights
        self._at_start: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer) -> None:
        """Lets a run go on that was stopped early and no longer has to stop."""
        if trainer.config.observe.early_stopping is None:
            trainer.state.stopped = None
        if self.from_given_weights and trainer.state.step == 0:
            self._at_start = {record["source"]: record["bits_per_byte"] for record in self._records(trainer)}

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        state = trainer.state
        if state.step % self.every_steps and not state.is_done:
            return
        records = [record | self._compared(record) for record in self._records(trainer)]
        for record in records:
            trainer.bus.write(Kind.EVALUATION, {"step": state.step, "tokens": state.tokens} | record)
        for hook in trainer.hooks:
            hook.on_evaluation(trainer, records)

    def on_rollback(self, trainer: Trainer) -> None:
        self.on_train_start(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"bits_per_byte_at_start": self._at_start} if self._at_start else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at_start = dict(state.get("bits_per_byte_at_start", {}))

    def _records(self, trainer: Trainer) -> Sequence[Record]:
        with trainer.backend.evaluating() as model:
            return self.evaluate(model, trainer.alive)

    def _compared(self, record: Mapping[str, Any]) -> Record:
        """What the starting weights scored on the record's source; nothing if that is not known."""
        at_start = self._at_start.get(record.get("source", ""))
        if at_start is None:
            return {}
        change = record["bits_per_byte"] - at_start
        return {"bits_per_byte_at_start": at_start, "bits_per_byte_change": change}
