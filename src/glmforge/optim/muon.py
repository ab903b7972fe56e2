"""Muon: momentum, orthogonalised. One code for one rank and for parameters sharded by FSDP2 or HSDP.

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
apart into one matrix per expert and half; matrices of one shape, of whatever layer, are orthogonalised in
one batch; and sharded ones travel to an owner (`glmforge.optim.exchange`) while momentum and weights stay
sharded. Expert tensors sharded over experts need no communication.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.config.schema import OptimConfig
from glmforge.optim.exchange import RowExchange, assign_owners
from glmforge.optim.newton_schulz import coefficients, newton_schulz
from glmforge.optim.sharding import local_part


@dataclass(frozen=True, eq=False)
class MuonParameter:
    """A parameter of two dims or more and its momentum (same placement), seen as a stack of matrices [A, B].

    `num_fused` matrices stand above each other in the second-last dim (gate and up: 2). `group` is the
    process group that shares the rows of a 2-D parameter; None where each matrix on this rank is whole.
    """

    parameter: Tensor
    momentum: Tensor
    weight_decay: float
    num_fused: int
    group: dist.ProcessGroup | None

    def __post_init__(self) -> None:
        assert self.group is None or self.num_fused == 1, "rows of fused matrices are not shared between ranks"

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(A, B) of one whole matrix."""
        return self.parameter.shape[-2] // self.num_fused, self.parameter.shape[-1]

    @property
    def num_matrices(self) -> int:
        """Length of the stack on this rank."""
        return self.stack(self.parameter).shape[0]

    def stack(self, tensor: Tensor) -> Tensor:
        """This rank's part of the parameter, its gradient or its momentum, viewed as [num_matrices, A, B].

        Of a matrix whose rows are shared by a group, the part is [1, rows here, B].
        """
        part = local_part(tensor)
        return part[None] if self.group else part.view(-1, *self.matrix_shape)


@dataclass(frozen=True)
class Slice:
    """Matrices `start` to `stop` of one parameter's stack: the unit of work."""

    source: MuonParameter
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def of(self, tensor: Tensor) -> Tensor:
        """These matrices of the parameter, its gradient or its momentum, as a view."""
        return self.source.stack(tensor)[self.start : self.stop]

    @property
    def has_gradient(self) -> bool:
        return self.source.parameter.grad is not None


@dataclass(frozen=True)
class Batch:
    """Matrices of one shape that are orthogonalised together: each owner's slices, in rank order."""

    matrix_shape: tuple[int, int]
    group: dist.ProcessGroup | None
    slices_by_owner: tuple[tuple[Slice, ...], ...]


class Muon:
    """Trains `parameters` by the settings in `config`.

    Newton-Schulz and the traffic between ranks are in `dtype`; momentum and weights keep their own.
    """

    def __init__(self, parameters: Sequence[MuonParameter], config: OptimConfig, dtype: torch.dtype):
        self._momentum = config.muon_momentum
        self._nesterov = config.muon_nesterov
        self._update_rms = config.muon_update_rms
        self._coefficients = coefficients(config.newton_schulz, config.newton_schulz_steps)
        self._dtype = dtype
        self._batches = plan_batches(parameters)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters that have a gradient; all ranks must agree on which, as FSDP2 ones do."""
        for batch in self._batches:
            owners = [[piece for piece in pieces if piece.has_gradient] for pieces in batch.slices_by_owner]
            if any(owners):
                self._step_batch(batch, owners, lr)

    def _step_batch(self, batch: Batch, slices_by_owner: Sequence[Sequence[Slice]], lr: float) -> None:
        slices = list(chain.from_iterable(slices_by_owner))
        rows_NrB = torch.cat([self._accumulate(piece) for piece in slices])
        if batch.group is None:
            updates_NrB = newton_schulz(rows_NrB, self._coefficients)
        else:
            num_owned = [sum(map(len, pieces)) for pieces in slices_by_owner]
            exchange = RowExchange(batch.group, num_owned, *batch.matrix_shape)
            updates_NrB = exchange.scatter(newton_schulz(exchange.gather(rows_NrB), self._coefficients))
        scale = lr * self._update_rms * math.sqrt(max(batch.matrix_shape))
        updates = torch.split(updates_NrB, [len(piece) for piece in slices])
        for piece, update in zip(slices, updates, strict=True):
            weight = piece.of(piece.source.parameter)
            weight.mul_(1 - lr * piece.source.weight_decay).add_(update, alpha=-scale)

    def _accumulate(self, piece: Slice) -> Tensor:
        """Add the gradient to the momentum, and return the direction to be orthogonalised."""
        assert piece.source.parameter.grad is not None
        gradient = piece.of(local_part(piece.source.parameter.grad).contiguous())
        momentum = piece.of(piece.source.momentum)
        momentum.lerp_(gradient, 1 - self._momentum)
        direction = gradient.lerp(momentum, self._momentum) if self._nesterov else momentum
        return direction.to(self._dtype)


def plan_batches(parameters: Sequence[MuonParameter]) -> list[Batch]:
    """Group matrices by process group and shape, give each an owner, and cut into batches of bounded size.

    The plan depends only on shapes and order, so that all ranks of a group run the same collectives.
    """
    by_group: dict[dist.ProcessGroup | None, list[MuonParameter]] = defaultdict(list)
    for parameter in parameters:
        by_group[parameter.group].append(parameter)
    return [batch for group, members in by_group.items() for batch in _plan_group(group, members)]


def batch_elements(device: torch.device) -> int:
    """How many elements one owner orthogonalises at a time (or one matrix, if that has more).

    On a CPU a batch had best stay in the cache: 2^20 elements are 20 % faster than 2^26. A GPU is filled by
    eight expert matrices of GLM-4.5; they bound its temporary memory to some 12 bytes per element, 0.8 GB.
    """
    return 2**20 if device.type == "cpu" else 2**26


def _plan_group(group: dist.ProcessGroup | None, parameters: Sequence[MuonParameter]) -> Iterator[Batch]:
    device = parameters[0].parameter.device
    num_owners = group.size() if group else 1
    owners = assign_owners([_cost(*parameter.matrix_shape) for parameter in parameters], num_owners)
    families: dict[tuple[int, int], list[list[MuonParameter]]] = {}
    for parameter, owner in zip(parameters, owners, strict=True):
        family = families.setdefault(parameter.matrix_shape, [[] for _ in range(num_owners)])
        family[owner].append(parameter)
    for matrix_shape, by_owner in families.items():
        limit = max(1, batch_elements(device) // math.prod(matrix_shape))
        for slices_by_owner in zip_longest(*(_pack(owned, limit) for owned in by_owner), fillvalue=()):
            yield Batch(matrix_shape, group, slices_by_owner)


def _cost(num_rows: int, num_columns: int) -> int:
    """Multiplications of one Newton-Schulz step on a matrix."""
    small, large = sorted((num_rows, num_columns))
    return small * small * (2 * large + small)


def _pack(parameters: Sequence[MuonParameter], limit: int) -> Iterator[tuple[Slice, ...]]:
    """Cut the parameters' stacks into tuples of slices, `limit` matrices each (the last one fewer)."""
    slices: list[Slice] = []
    room = limit
    for parameter in parameters:
        start, num_matrices = 0, parameter.num_matrices
        while start < num_matrices:
            piece = Slice(parameter, start, min(start + room, num_matrices))
            slices.append(piece)
            start, room = piece.stop, room - len(piece)
            if room == 0:
                yield tuple(slices)
                slices, room = [], limit
    if slices:
        yield tuple(slices)
