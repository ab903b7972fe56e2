"""Regions (`glmforge.model.placement`) of a layer that the ranks of the tp axis compute together.

Inside the region every rank has all T tokens and a part of each matrix; outside, either all tokens are on all ranks,
or (sequence parallelism, Korthikanti et al., 2022, arXiv 2205.05198) each rank keeps T / tp of them, so that norms and
residuals are neither computed nor stored more than once. Both take the same traffic: a gather and a reduce-scatter
move what an all-reduce does.

    outside              enter                       leave
    sequence parallel    all-gather                  reduce-scatter
    else                 nothing (grad: all-reduce)  all-reduce (grad: nothing)
"""

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from glmforge.model.placement import Region
from glmforge.parallel import collectives


@dataclass(frozen=True)
class TensorRegion(Region):
    """All tokens with a part of each matrix, on the ranks of `group`, two or more."""

    group: dist.ProcessGroup
    sequence_parallel: bool

    def enter(self, x: Tensor) -> Tensor:
        """All T tokens, on every rank, from what the rank has outside."""
        if self.sequence_parallel:
            return collectives.all_gather(x, self.group)
        return collectives.copy(x, self.group)

    def leave(self, partial: Tensor) -> Tensor:
        """The sum of all ranks' parts of T tokens, as the rank is to have it outside."""
        if self.sequence_parallel:
            return collectives.reduce_scatter(partial, self.group)
        return collectives.all_reduce(partial, self.group)


@dataclass(frozen=True)
class OwnTokens(Region):
    """The rank's share of the tokens with whole matrices, where all ranks of `group` have all tokens outside."""

    group: dist.ProcessGroup

    def enter(self, x: Tensor) -> Tensor:
        return collectives.split(x, self.group)

    def leave(self, partial: Tensor) -> Tensor:
        """Here every rank has all of its own tokens' sum, and lacks the others'."""
        return collectives.gather_shares(partial, self.group)
