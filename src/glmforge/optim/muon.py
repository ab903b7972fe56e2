"""Muon: momentum, orthogonalised. One code for one rank and for every layout of parameters.

Per step and matrix [A, B] (Jordan et al., 2024, with the scale and decay of Liu et al., 2025, arXiv
2502.16982):

    momentum <- mu * momentum + (1 - mu) * gradient
    update   <- orthogonalise(mu * momentum + (1 - mu) * gradient)        (Nesterov; else of the momentum)
    weight   <- (1 - lr * weight_decay) * weight - lr * 0.2 * sqrt(max(A, B)) * update

An orthogonal [A, B] matrix has a root mean square of 1 / sqrt(max(A, B)), so the scale gives each update
the RMS of about 0.2 that AdamW's have, and both share one learning rate. The momentum is an average rather
than Jordan's sum; orthogonalisation does not see the factor. The numbers are
`torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`'s.

What we do otherwise than torch, which takes one 2-D matrix after another: packed expert tensors are taken
apart into one matrix per expert and half; matrices of one shape, of any layer, are orthogonalised in
one batch; and those that lie in parts or copies on several ranks are sent to one owner (`glmforge.optim.ownership`,
`glmforge.optim.exchange`) while momentum and weights stay where they are. Experts that lie whole on one rank need no
communication.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from glmforge.config.optim import OptimConfig
from glmforge.optim.exchange import Exchange
from glmforge.optim.matrices import Slice
from glmforge.optim.newton_schulz import coefficients, newton_schulz
from glmforge.optim.ownership import plan_rounds
from glmforge.optim.sharding import local_part
from glmforge.optim.update_rule import TrainedParameter, UpdateRule
from glmforge.parallel.world import World


class Muon(UpdateRule):
    """Trains parameters of two or three dims.

    Newton-Schulz and the traffic between ranks are in `compute_dtype` on the world's device; momentum and weights keep
    their own. Raises `ValueError` as `glmforge.optim.sharding.splits_of` does.
    """

    def __init__(
        self, parameters: Sequence[TrainedParameter], config: OptimConfig, world: World, compute_dtype: torch.dtype
    ):
        super().__init__(parameters, config, world, compute_dtype)
        self._momentum = config.muon_momentum
        self._nesterov = config.muon_nesterov
        self._update_rms = config.muon_update_rms
        self._coefficients = coefficients(config.newton_schulz, config.newton_schulz_steps)
        self._rounds = plan_rounds(parameters, world)
        self._trained: list[bool] = []
        self._exchanges: list[Exchange] = []

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters that have a gradient; all ranks that hold a part must agree on which."""
        trained = [parameter.has_gradient for parameter in self.parameters]
        if trained != self._trained:
            self._exchanges = [Exchange(one, self.world, self.compute_dtype) for one in self._rounds]
            self._trained = trained
        for parameter in self.parameters:
            if parameter.has_gradient and "step" in parameter.states:  # of bf16 states
                parameter.states["step"].add_(1)
        for exchange in self._exchanges:
            if exchange.num_matrices:
                self._step_round(exchange, lr)

    def _step_round(self, exchange: Exchange, lr: float) -> None:
        directions = [
            self._accumulate(piece, sends) for piece, sends in zip(exchange.pieces, exchange.sends, strict=True)
        ]
        matrices_NAB = exchange.gather([direction for direction in directions if direction is not None])
        del directions
        updates_NAB = self._orthogonalise(matrices_NAB) if len(matrices_NAB) else matrices_NAB
        for piece, update in zip(exchange.pieces, exchange.scatter(updates_NAB), strict=True):
            rate = lr * piece.source.group.lr_scale
            scale = rate * self._update_rms * math.sqrt(max(piece.matrix_shape))
            weight = piece.of(piece.source.parameter)
            weight.mul_(1 - rate * piece.source.group.weight_decay).add_(update, alpha=-scale)

    def _orthogonalise(self, matrices_NAB: Tensor) -> Tensor:
        return newton_schulz(matrices_NAB, self._coefficients, symmetric_matmul=self.kernels.symmetric_matmul)

    def _accumulate(self, piece: Slice, sends: bool) -> Tensor | None:
        """Add the gradient to the momentum, and return the direction to be orthogonalised if it is to be sent."""
        assert piece.source.parameter.grad is not None
        gradient = piece.of(local_part(piece.source.parameter.grad).contiguous())
        momentum = piece.source.load("momentum", piece.of)
        momentum.lerp_(gradient, 1 - self._momentum)
        piece.source.store("momentum", momentum, piece.of)
        if not sends:
            return None
        direction = gradient.lerp(momentum, self._momentum) if self._nesterov else momentum
        return direction.to(self.compute_dtype)
