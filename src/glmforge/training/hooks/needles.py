"""Test at every evaluation what the model retrieves from long contexts. How is the recipe's function."""

from collections.abc import Callable, Sequence
from typing import Any

from glmforge.observe.alive import Alive
from glmforge.observe.bus import Kind
from glmforge.observe.metrics import Record
from glmforge.training.order import Priority
from glmforge.training.trainer import Hook, Trainer

FindNeedles = Callable[[Any, str, Alive], Sequence[Record]]
"""Takes the model as `Backend.evaluating` gives it, the phase's name and `Trainer.alive`, to be called while it works.
All ranks call it together and get the same records, one per task, length and depth; none in a phase without tests."""


class NeedlesHook(Hook):
    """Writes the records of `find_needles`, with step and tokens, after each evaluation."""

    name = "needles"
    priority = Priority.EVALUATE
    after = ("evaluation",)

    def __init__(self, find_needles: FindNeedles) -> None:
        self.find_needles = find_needles

    def on_evaluation(self, trainer: Trainer, records: Sequence[Record]) -> None:
        where = {"step": trainer.state.step, "tokens": trainer.state.tokens}
        with trainer.backend.evaluating() as model:
            found = self.find_needles(model, trainer.phase.name, trainer.alive)
        for record in found:
            trainer.bus.write(Kind.NEEDLES, where | record)
