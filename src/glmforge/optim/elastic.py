"""Elastic weight consolidation: a pull back to earlier weights, as strong as what they knew depends on each.

The loss of Kirkpatrick et al. (2017, arXiv 1612.00796) with a diagonal Fisher matrix F:

    L(w) = L_new(w) + strength / 2 * sum_i F_i (w_i - w*_i)^2

w* are the weights that the model had when F was measured (`glmforge.training.fisher`). F is per token and L_new a mean
over tokens, so `strength` is the Laplace approximation's number of old tokens for each new one.

The gradient of the second term, strength * F * (w - w*), needs no forward pass: it is added to the gradient that all
ranks have summed, each rank to the part that it holds, in fp32. So it does not depend on the layout. Like the rest of
the gradient it is clipped and goes through the optimizer, unlike weight decay.

Cost: F and w* in fp32, 8 bytes (`EWC_BYTES`) for each trained parameter, cut over ranks like optimizer states and as
large as those of AdamW. In each step one pass over weights, gradients and both: 20 bytes of memory traffic for each
parameter and no communication. Meanwhile twice the largest part of a parameter is needed.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from glmforge.optim.sharding import Chunk, local_part
from glmforge.parallel.world import World

FISHER, START = "fisher.", "model."
"""What names of tensors begin with, in memory and in the directory of the Fisher information."""


class ElasticPenalty:
    """The second term, for the trained `weights` of this rank.

    `tensors` are to be filled with F and w*: until then they are 0. They are laid out like the weights.
    """

    def __init__(self, weights: Mapping[str, Tensor], strength: float, world: World) -> None:
        self.strength, self.world = strength, world
        self.tensors = {
            prefix + name: torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)
            for prefix in (FISHER, START)
            for name, weight in weights.items()
        }

    @torch.no_grad()
    def add_gradients(self, chunks: Iterable[Chunk]) -> Tensor:
        """Add the term's gradient to that of the weights' `chunks`, and return this rank's share of its value (float64
        scalar).

        The shares of all ranks add up to the value. Parameters without a gradient are not trained and have no part.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for name, weight, grad, copies in chunks:
            if grad is None:
                continue
            fisher, start = (local_part(self.tensors[prefix + name]) for prefix in (FISHER, START))
            moved = weight - start
            pull = fisher * moved
            grad.add_(pull, alpha=self.strength)
            rows = pull.mul_(moved).sum(-1)  # summed in double: fp32 loses digits over many rows
            total += (rows.double().sum() * (self.strength / 2 / copies)).to(total.device)
        return total
