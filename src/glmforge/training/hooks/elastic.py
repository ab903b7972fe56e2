"""Elastic weight consolidation (`regularization.ewc`): adds its gradient in every step, and records its value."""

import logging

from glmforge.checkpoint.load import load_checkpoint
from glmforge.checkpoint.values import check_values
from glmforge.config.parameter_groups import parameter_groups
from glmforge.config.regularization import EwcConfig
from glmforge.errors import CheckpointError
from glmforge.observe.metric_table import Metric
from glmforge.optim.elastic import FISHER, START, ElasticPenalty
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

_SUM = "ewc"


class ElasticHook(Hook):
    """Reads the Fisher information and the weights that it belongs to when training starts, each rank its own part.

    Both are in the directory that `glmforge fisher` wrote, and not in the run's checkpoints. Raises `CheckpointError`
    if it is incomplete, of another model, or no Fisher information.
    """

    name = "ewc"
    priority = Priority.COLLECT
    metric_rows = (
        Metric(
            "loss_ewc",
            "nats/token",
            "loss",
            "elastic weight consolidation, as it is added to the loss: strength / 2 times sum of F (w - w*)^2",
        ),
    )

    def __init__(self, config: EwcConfig) -> None:
        self.config = config
        self._penalty: ElasticPenalty | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        backend = trainer.backend
        weights, names = backend.weights(), [chunk.name for chunk in backend.local_chunks()]
        self._penalty = ElasticPenalty({name: weights[name] for name in names}, self.config.strength, trainer.world)
        groups = parameter_groups(backend.table, trainer.config.optim)
        trained = [row.name for group in groups if not group.is_frozen for row in group.parameters]
        only = {prefix + name for prefix in (FISHER, START) for name in trained}
        try:
            load_checkpoint(self.config.fisher, self._penalty.tensors, only=only)
            fisher = {name: each for name, each in self._penalty.tensors.items() if name.startswith(FISHER)}
            check_values(self.config.fisher, fisher, least=0)
            check_values(self.config.fisher, self._penalty.tensors)
        except CheckpointError as error:
            raise CheckpointError(f"regularization.ewc.fisher: {error}") from None

    def on_gradients(self, trainer: Trainer) -> None:
        assert self._penalty is not None, "read before the first step"
        trainer.reducer.add(_SUM, self._penalty.add_gradients(trainer.backend.local_chunks()).reshape(1))

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        value = float(result.metrics[_SUM])
        trainer.record(loss_ewc=value)
        if trainer.state.step == 1 and value > 0:
            said = f"{self.config.fisher} belongs to other weights than this run starts from, and pulls towards those"
            trainer.event("different weights", said)
            if trainer.world.is_main:
                logger.warning("regularization.ewc.fisher: %s", said)
