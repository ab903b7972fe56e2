"""LAMB (You et al., 2019, arXiv 1904.00962): AdamW's direction, as long for each linear map as its weights.

Per step and matrix, with AdamW's moments and bias correction:

    update <- mean / (sqrt(square) + eps) + weight_decay * weight
    weight <- weight - lr * |weight| / |update| * update

The trust ratio |weight| / |update|, of Frobenius norms, is 1 where one of them is 0. The paper bounds |weight| by a
function phi which it leaves open; as in its authors' code phi is the identity, so nothing is clipped. What counts as a
layer is one linear map: q, k and v, and of every expert gate, up and down, each have a ratio of their own, as Muon
orthogonalises them each by itself.

Matrices may lie in parts on several ranks. Each rank adds up the squares of its parts, and those of all matrices of a
pipeline stage are summed over its ranks in a single collective. Copies of a part count as often in both norms, which
the ratio does not see. The update is computed twice, for its norm and to be applied, instead of being kept: the
optimizer holds just two moments.

N: matrices of a part of a parameter; M: all matrices of a pipeline stage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.config.optim import OptimConfig
from glmforge.optim.matrices import Spread, spreads_of
from glmforge.optim.sharding import local_part
from glmforge.optim.update_rule import TrainedParameter, UpdateRule
from glmforge.parallel.world import World


@dataclass(frozen=True, eq=False)
class _Part:
    """This rank's part of equal matrices of a parameter, and their place among the M."""

    spread: Spread
    here: int
    slots: slice

    def of(self, tensor: Tensor) -> Tensor:
        """The part of the rank's part of the parameter, as a view [N, rows, columns]."""
        return self.spread.view(tensor, self.here)


class Lamb(UpdateRule):
    """Trains parameters of two or three dims; raises `ValueError` as `spreads_of` does."""

    def __init__(
        self, parameters: Sequence[TrainedParameter], config: OptimConfig, world: World, compute_dtype: torch.dtype
    ):
        super().__init__(parameters, config, world, compute_dtype)
        self._betas, self._eps = config.betas, config.eps
        self._parts: list[list[_Part]] = []
        self._num_matrices = 0
        for source in parameters:
            self._parts.append(list(self._parts_of(source)))

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters that have a gradient; all ranks that hold the same layers must agree on which."""
        trained = [pair for pair in zip(self.parameters, self._parts, strict=True) if pair[0].has_gradient]
        if not trained:
            return
        squares_2M = torch.zeros(2, self._num_matrices, dtype=torch.float64, device=self.world.device)
        for source, parts in trained:
            self._accumulate(source)
            for row, tensor in enumerate((local_part(source.parameter), self._update(source))):
                for part in parts:
                    squares_2M[row, part.slots] = _squares(part.of(tensor)).to(squares_2M)
        ratios_M = _trust_ratios(self.world.sum(squares_2M, "stage").sqrt())
        for source, parts in trained:
            weight, update = local_part(source.parameter), self._update(source)
            for part in parts:
                ratio_N11 = ratios_M[part.slots].to(weight)[:, None, None]
                part.of(weight).addcmul_(part.of(update), ratio_N11, value=-lr * source.group.lr_scale)

    def _accumulate(self, source: TrainedParameter) -> None:
        """Add the gradient to the moments."""
        assert source.parameter.grad is not None
        gradient = local_part(source.parameter.grad)
        source.states["step"].add_(1)
        mean = source.load("exp_avg").lerp_(gradient, 1 - self._betas[0])
        source.store("exp_avg", mean)
        square = source.load("exp_avg_sq").mul_(self._betas[1]).addcmul_(gradient, gradient, value=1 - self._betas[1])
        source.store("exp_avg_sq", square)

    def _update(self, source: TrainedParameter) -> Tensor:
        """AdamW's direction for this rank's part of a parameter, weight decay included; a new tensor."""
        steps = source.states["step"].double()  # in fp32, 1 - beta ** 1 would have four digits
        root = (source.load("exp_avg_sq") / (1 - self._betas[1] ** steps)).sqrt_().add_(self._eps)
        mean = source.load("exp_avg") / (1 - self._betas[0] ** steps)
        return mean.div_(root).add_(local_part(source.parameter), alpha=source.group.weight_decay)

    def _parts_of(self, source: TrainedParameter) -> Iterator[_Part]:
        spreads, here = spreads_of(source.parameter, source.num_fused, self.world.layout, self.world.rank)
        for spread in spreads:
            box = spread.boxes[here]
            if box.size:
                start, stop = (self._num_matrices + matrix for matrix in box.matrices)
                yield _Part(spread, here, slice(start, stop))
            self._num_matrices += spread.num_matrices


def _squares(matrices_NAB: Tensor) -> Tensor:
    """Sum of squares of each matrix, fp64 [N]: by rows, since torch's fp32 norm of 10^7 elements is off by 1e-4."""
    return torch.linalg.vector_norm(matrices_NAB, dim=-1).double().square().sum(-1)


def _trust_ratios(norms_2M: Tensor) -> Tensor:
    weight_M, update_M = norms_2M
    return torch.where((weight_M > 0) & (update_M > 0), weight_M / update_M, 1.0)
