"""Evaluate every so many steps and after the last; stop when it no longer pays. How is the recipe's function."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunDirectory, record_event
from glmforge.observe.sinks import JsonlSink, Sink, TensorBoardSink
from glmforge.parallel.model import ParallelModel
from glmforge.training.hooks.early_stopping import EarlyStopping
from glmforge.training.order import Stage
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

Evaluate = Callable[[ParallelModel], Sequence[Record]]
"""All ranks call it together; gives one record per held-out source (`source`, `bits_per_byte`, ...)."""


class EvaluationHook(Hook):
    """Appends the records of `evaluate`, with step and tokens, to `evaluation.jsonl`, and shows them in TensorBoard."""

    name = "evaluation"
    stage = Stage.EVALUATE

    def __init__(
        self, output_dir: Path, every_steps: int, evaluate: Evaluate, early_stopping: EarlyStopping | None = None
    ) -> None:
        self.directory = RunDirectory(output_dir)
        self.every_steps = every_steps
        self.evaluate = evaluate
        self.early_stopping = early_stopping
        self._sinks: Sequence[Sink] = ()

    def on_train_start(self, trainer: Trainer) -> None:
        """Also lets a run go on that was stopped early and is no longer told to stop."""
        if self.early_stopping is None:
            trainer.state.stopped = None
        if not trainer.world.is_main:
            return
        step = trainer.state.step
        self._sinks = [JsonlSink(self.directory.evaluation, resume_step=step)]
        if trainer.config.observe.tensorboard:
            # A directory of its own: two writers that resume would hide each other's records.
            self._sinks.append(TensorBoardSink(self.directory.tensorboard / "evaluation", resume_step=step))

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        state = trainer.state
        if state.step % self.every_steps and not state.is_done:
            return
        trainer.model.eval()
        # Dropped tokens would make the score depend on which rows are scored together, and on how many ranks.
        trainer.model.set_capacity_factor(None)
        records = self.evaluate(trainer.model)
        trainer.model.set_capacity_factor(trainer.phase.capacity_factor)
        trainer.model.train()
        reason = None if self.early_stopping is None else self.early_stopping.update(records)
        if not state.is_done:  # a run at its end is not stopped early, and may be prolonged
            state.stopped = reason
        for sink in self._sinks:
            for record in records:
                sink.write({"step": state.step, "tokens": state.tokens} | record)
        if state.stopped is not None and trainer.world.is_main:
            record_event(self.directory.root, "stopped early", step=state.step, detail=state.stopped)

    def on_rollback(self, trainer: Trainer) -> None:
        self.close()
        self.on_train_start(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.early_stopping is None else self.early_stopping.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.early_stopping is not None and state:
            self.early_stopping.load_state_dict(state)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
