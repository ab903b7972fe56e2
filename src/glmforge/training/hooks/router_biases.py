"""How far the routers' correction biases lie apart, and how far they move.

Biases lie with their layers, so under pipeline parallelism no rank sees them all; two numbers per layer are exchanged.

Shapes: L routers, E experts.
"""

import torch
from torch import Tensor

from glmforge.observe.balance import bias_metrics
from glmforge.observe.metrics import Record
from glmforge.parallel.model import ParallelModel


class RouterBiases:
    """Compares the biases of `model` with those of the last record, at first with those of now."""

    def __init__(self, model: ParallelModel) -> None:
        self._model = model
        self._last = {number: bias_E.clone() for number, bias_E in self._biases().items()}

    def take_record(self, num_routers: int) -> Record:
        """The metrics of the first `num_routers` routers since the last call. All ranks call this together."""
        world = self._model.world
        spread_drift_2L = torch.zeros(2, num_routers, device=world.device)
        for number, bias_E in self._biases().items():
            if number < num_routers:
                spread_drift_2L[0, number] = bias_E.max() - bias_E.min()
                spread_drift_2L[1, number] = (bias_E - self._last[number]).abs().max()
            self._last[number].copy_(bias_E)
        return bias_metrics(*world.sum(spread_drift_2L, "pp").cpu())

    def _biases(self) -> dict[int, Tensor]:
        return {number: moe.gate.e_score_correction_bias for number, moe in self._model.moe_layers().items()}
