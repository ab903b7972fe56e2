"""How evenly the routers loaded the experts, how far their correction biases lie apart, and how far they move.

Biases lie with their layers, so under pipeline parallelism no rank sees them all; two numbers per layer are exchanged.

Shapes: L routers, E experts.
"""

import torch

from glmforge.backend.base import Backend
from glmforge.observe.balance import balance_metrics, bias_metrics, expert_load
from glmforge.observe.metrics import Record
from glmforge.training.order import Priority
from glmforge.training.records import EXPERT_LOAD_RECORDS, LAYER_RECORDS, is_one_of
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer


class RoutersHook(Hook):
    """Records the balance of the last step, in some records layer by layer and with the biases."""

    name = "routers"
    priority = Priority.COLLECT

    def __init__(self) -> None:
        self._biases: RouterBiases | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        self._biases = RouterBiases(trainer.backend)

    def on_rollback(self, trainer: Trainer) -> None:
        self.on_train_start(trainer)

    def on_record(self, trainer: Trainer, result: StepResult) -> None:
        num_routers = len(result.counts_LE)
        if not num_routers:
            return
        by_layer = is_one_of(trainer, LAYER_RECORDS)
        if by_layer and self._biases is not None:
            trainer.record(**self._biases.metrics(num_routers))
        if trainer.world.is_main:
            counts_LE = result.counts_LE.cpu()
            dropped_LE = result.dropped_LE.cpu() if trainer.phase.capacity_factor is not None else None
            trainer.record(**balance_metrics(counts_LE, dropped_LE, by_layer=by_layer))
            if is_one_of(trainer, EXPERT_LOAD_RECORDS):
                trainer.record(expert_load=expert_load(counts_LE))


class RouterBiases:
    """Compares the biases of the model with those of the last record, at first with those of now."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._last = {number: bias_E.clone() for number, bias_E in backend.router_biases().items()}

    def metrics(self, num_routers: int) -> Record:
        """The metrics of the first `num_routers` routers since the last call. All ranks call this together."""
        world = self._backend.world
        spread_drift_2L = torch.zeros(2, num_routers, device=world.device)
        for number, bias_E in self._backend.router_biases().items():
            if number < num_routers:
                spread_drift_2L[0, number] = bias_E.max() - bias_E.min()
                spread_drift_2L[1, number] = (bias_E - self._last[number]).abs().max()
            self._last[number].copy_(bias_E)
        return bias_metrics(*world.sum(spread_drift_2L, "pp").cpu())
