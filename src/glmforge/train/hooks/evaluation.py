"""Evaluate every so many steps and after the last one; how is the recipe's function."""

from collections.abc import Callable, Sequence
from pathlib import Path

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunDirectory
from glmforge.observe.sinks import JsonlSink
from glmforge.parallel.model import ParallelModel
from glmforge.train.trainer import Hook, StepOutcome, Trainer

Evaluate = Callable[[ParallelModel], Sequence[Record]]
"""All ranks call it together; gives one record per held-out source (`source`, `bits_per_byte`, ...)."""


class EvaluationHook(Hook):
    """Appends the records of `evaluate`, with step and tokens, to `evaluation.jsonl`."""

    name = "evaluation"

    def __init__(self, output_dir: Path, every_steps: int, evaluate: Evaluate) -> None:
        self.path = RunDirectory(output_dir).evaluation
        self.every_steps = every_steps
        self.evaluate = evaluate
        self._sink: JsonlSink | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.world.is_main:
            self._sink = JsonlSink(self.path, resume_step=trainer.state.step)

    def on_step_end(self, trainer: Trainer, outcome: StepOutcome) -> None:
        state = trainer.state
        if state.step % self.every_steps and not state.is_done(trainer.config):
            return
        trainer.model.eval()
        # Dropped tokens would make the score depend on which rows are scored together, and on how many ranks.
        trainer.model.set_capacity_factor(None)
        records = self.evaluate(trainer.model)
        trainer.model.set_capacity_factor(outcome.phase.capacity_factor)
        trainer.model.train()
        if self._sink is None:
            return
        for record in records:
            self._sink.write({"step": state.step, "tokens": state.tokens} | record)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
