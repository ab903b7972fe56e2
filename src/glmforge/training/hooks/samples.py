"""Let the model write at every evaluation, to be read by people. What it writes is the recipe's choice."""

from collections.abc import Sequence
from typing import Protocol

from glmforge.observe.bus import Kind
from glmforge.observe.metrics import Record
from glmforge.parallel.model import ParallelModel
from glmforge.training.order import Priority
from glmforge.training.trainer import Hook, Trainer


class Writer(Protocol):
    """Has a model write. All ranks call its methods together."""

    def check(self, model: ParallelModel) -> None:
        """Raise `ConfigError` if it cannot be done."""
        ...

    def write(self, model: ParallelModel) -> Sequence[Record]:
        """One record per text, the same on all ranks."""
        ...


class SamplesHook(Hook):
    """Writes the records of `writer`, with step and tokens, after each evaluation."""

    name = "samples"
    priority = Priority.EVALUATE
    after = ("evaluation",)

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def on_train_start(self, trainer: Trainer) -> None:
        self.writer.check(trainer.model)

    def on_evaluation(self, trainer: Trainer, records: Sequence[Record]) -> None:
        where = {"step": trainer.state.step, "tokens": trainer.state.tokens}
        for record in self.writer.write(trainer.model):
            trainer.bus.write(Kind.SAMPLE, where | record)
