"""A hook that ends a run early, as a person would."""

from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class StopAfter(Hook):
    """Votes for the end once a step is done; the run ends with the step after it."""

    name = "stop after"

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.state.step == self.step:
            trainer.vote("stop")
