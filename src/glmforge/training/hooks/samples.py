"""Let the model write at every evaluation, to be read by people. What it writes is the recipe's choice."""

from collections.abc import Sequence
from typing import Any, Protocol

from glmforge.observe.alive import Alive
from glmforge.observe.bus import Kind
from glmforge.observe.metrics import Record
from glmforge.training.order import Priority
from glmforge.training.trainer import Hook, Trainer


class Writer(Protocol):
    """Has a model, as `Backend.evaluating` gives it, write. All ranks call its methods together."""

    def check(self, model: Any) -> None:
        """Raise `ConfigError` if it cannot be done."""
        ...

    def write(self, model: Any, alive: Alive) -> tuple[Sequence[Record], Sequence[Record]]:
        """One record per text, and one per held-out source whose prompts were answered; the same on all ranks.

        Calls `alive` while it works."""
        ...


class SamplesHook(Hook):
    """Writes the records of `writer`, with step and tokens, after each evaluation."""

    name = "samples"
    priority = Priority.EVALUATE
    after = ("evaluation",)

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def on_train_start(self, trainer: Trainer) -> None:
        with trainer.backend.evaluating() as model:
            self.writer.check(model)

    def on_evaluation(self, trainer: Trainer, records: Sequence[Record]) -> None:
        where = {"step": trainer.state.step, "tokens": trainer.state.tokens}
        with trainer.backend.evaluating() as model:
            texts, sources = self.writer.write(model, trainer.alive)
        for kind, found in ((Kind.SAMPLE, texts), (Kind.EVALUATION, sources)):
            for record in found:
                trainer.bus.write(kind, where | record)
