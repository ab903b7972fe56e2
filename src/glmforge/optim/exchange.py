"""Bring row-sharded matrices together on one owner each, and the results back.

A matrix whose rows lie on W ranks cannot be orthogonalised where it lies. Gathering it on every rank would
do the same work W times; instead each matrix has one owner, and one uneven `all_to_all_single` moves a
batch of matrices from "my rows of all" to "all rows of mine", a second one back. Both buffers are flat, and
one rank's traffic is about its own share of the batch. Collectives are over FSDP2's shard axis only: HSDP's
replicas each do the same work on the same numbers.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.optim.sharding import rows_per_rank


def assign_owners(costs: Sequence[int], num_ranks: int) -> list[int]:
    """An owner for each matrix: dearest first, each to the rank that has least to do so far.

    Deterministic, so that every rank comes to the same answer by itself.
    """
    loads = [0] * num_ranks
    owners = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        owners[item] = loads.index(min(loads))
        loads[owners[item]] += costs[item]
    return owners


class RowExchange:
    """The two moves for a batch of N equal matrices [A, B], ordered by owner.

    `num_owned[rank]` of the N matrices are owned by `rank` of `group`; r is the number of rows on this rank.
    """

    def __init__(self, group: dist.ProcessGroup, num_owned: Sequence[int], num_rows: int, num_columns: int):
        self._group = group
        self._num_columns = num_columns
        self._rows = rows_per_rank(num_rows, group.size())
        self._num_matrices, self._num_mine = sum(num_owned), num_owned[group.rank()]
        my_rows = self._rows[group.rank()]
        self._row_sizes = [num * my_rows * num_columns for num in num_owned]  # my rows, by owner
        self._matrix_sizes = [self._num_mine * rows * num_columns for rows in self._rows]  # mine, by source

    def gather(self, rows_NrB: Tensor) -> Tensor:
        """This rank's rows of all N matrices -> all A rows of the matrices it owns, [num_owned, A, B]."""
        received = rows_NrB.new_empty(sum(self._matrix_sizes))
        dist.all_to_all_single(received, rows_NrB.reshape(-1), self._matrix_sizes, self._row_sizes, group=self._group)
        blocks = zip(torch.split(received, self._matrix_sizes), self._rows, strict=True)
        return torch.cat([block.view(self._num_mine, rows, self._num_columns) for block, rows in blocks], dim=1)

    def scatter(self, matrices_MAB: Tensor) -> Tensor:
        """The inverse of `gather`: owned matrices -> this rank's rows of all, [N, r, B]."""
        sent = torch.cat([block.reshape(-1) for block in torch.split(matrices_MAB, self._rows, dim=1)])
        received = matrices_MAB.new_empty(sum(self._row_sizes))
        dist.all_to_all_single(received, sent, self._row_sizes, self._matrix_sizes, group=self._group)
        return received.view(self._num_matrices, self._rows[self._group.rank()], self._num_columns)
