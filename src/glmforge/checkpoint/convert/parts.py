"""Which rank holds which part of which tensor, known to all ranks.

For the parts of a few thousand tensors on hundreds of ranks a table of integers is kept, megabytes in all; a
tensor's boxes are made when they are requested.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from glmforge.checkpoint.collective import all_gather
from glmforge.checkpoint.format.boxes import Box
from glmforge.parallel.placement import local_chunk

_MAX_DIMS = 3


class Parts:
    """This rank's parts, and where those of the others lie.

    `table` `[rank, tensor, 6]` has offsets and sizes of each part, 0 beyond a tensor's dims, 0 where a rank holds
    nothing.
    """

    def __init__(self, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], table: Tensor) -> None:
        self._tensors = tensors
        self._shapes = shapes
        self._table = table
        self._row = {name: row for row, name in enumerate(shapes)}
        # A packed tensor is requested by each of its hundreds of pieces in turn, for every shard that is being written.
        self.holders = lru_cache(maxsize=256)(self._holders)

    @classmethod
    def gather(cls, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> Self:
        """The parts of all ranks' `tensors`, whose names are among those of `shapes`. All ranks call this together."""
        own = torch.zeros(len(shapes), 2 * _MAX_DIMS, dtype=torch.int32)
        for row, name in enumerate(shapes):
            if name in tensors:
                local, offsets = local_chunk(tensors[name])
                own[row, : local.dim()] = torch.tensor(offsets)
                own[row, _MAX_DIMS : _MAX_DIMS + local.dim()] = torch.tensor(local.shape)
        return cls(tensors, shapes, torch.stack(all_gather(own)))

    def read(self, name: str, box: Box) -> Tensor:
        """The elements `box` of a tensor, which must lie within this rank's part of it."""
        local, offsets = local_chunk(self._tensors[name])
        return local[box.within(Box(offsets, tuple(local.shape)))]

    def _holders(self, name: str) -> dict[Box, list[int]]:
        """The parts of a tensor, and the ranks that hold each. No two parts overlap, and they are all of it."""
        shape = self._shapes[name]
        found: dict[Box, list[int]] = {}
        for rank, row in enumerate(self._table[:, self._row[name]].tolist()):
            box = Box(tuple(row[: len(shape)]), tuple(row[_MAX_DIMS : _MAX_DIMS + len(shape)]))
            if box.num_elements:
                found.setdefault(box, []).append(rank)
        held, whole = sum(box.num_elements for box in found), Box.whole(shape).num_elements
        assert held == whole, f"the ranks hold {held} elements of {name}, which has {whole}"
        return found
