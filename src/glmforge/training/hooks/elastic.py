"""Elastic weight consolidation (`regularization.ewc`): adds its gradient in every step, and records its value."""

from glmforge.checkpoint.load import load_checkpoint
from glmforge.config.regularization import EwcConfig
from glmforge.errors import CheckpointError
from glmforge.optim.elastic import ElasticPenalty
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

_SUM = "ewc"


class ElasticHook(Hook):
    """Reads the Fisher information and the weights that it belongs to when training starts, each rank its own part.

    Both are in the directory that `glmforge fisher` wrote, and not in the run's checkpoints. Raises `CheckpointError`
    if it is not whole or of another model.
    """

    name = "ewc"
    priority = Priority.COLLECT

    def __init__(self, config: EwcConfig) -> None:
        self.config = config
        self._penalty: ElasticPenalty | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        self._penalty = ElasticPenalty(trainer.model.named_parameters(), self.config.strength, trainer.world)
        try:
            load_checkpoint(self.config.fisher, self._penalty.tensors, subset=True)
        except CheckpointError as error:
            raise CheckpointError(f"regularization.ewc.fisher: {error}") from None

    def on_gradients(self, trainer: Trainer) -> None:
        assert self._penalty is not None, "it is read before the first step"
        trainer.reducer.add(_SUM, self._penalty.add_gradients().reshape(1))

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        trainer.record(loss_ewc=float(result.metrics[_SUM]))
