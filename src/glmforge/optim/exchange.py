"""Bring the parts of matrices together on their owners, and the updates back to all who hold a part.

A matrix that lies in parts cannot be orthogonalised where it lies. Gathering it on every rank would do the same work
many times; instead each matrix has one owner, and one uneven `all_to_all_single` moves a round of matrices from "my
parts of all" to "all of mine", a second one back. Of several copies of a part only one goes to the owner, that of the
copy which the owner itself has a part of; the update goes to all, so that copies stay equal to the last bit. Where
owners hold their matrices whole, only the second move is made, and neither if no other rank holds them.

Hundreds of ranks have a part of each matrix, and most of these parts are alike: they are copied as one strided view
(`Tiles`), not one after the other.
"""

import operator
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.optim.matrices import Box, Slice
from glmforge.optim.ownership import Round
from glmforge.optim.sharding import union_ranks
from glmforge.parallel.world import World


class Exchange:
    """The moves of one round, for the matrices of parameters that have a gradient.

    `pieces` are this rank's parts of these matrices, ordered by owner; `sends` tells of each whether the owner gets it
    from this rank. Parts are sent and assembled in `dtype` on the world's device; parameters may lie on another.
    """

    def __init__(self, planned: Round, world: World, dtype: torch.dtype):
        self._gathers, self._device, self._dtype = planned.gathers, world.device, dtype
        self._group = world.group(planned.union) if planned.union else None
        here = union_ranks(world.layout, world.rank, planned.union).index(world.rank) if planned.union else 0
        by_owner = [[piece for piece in slices if piece.source.has_gradient] for slices in planned.slices_by_owner]
        self.num_matrices = sum(len(piece) for slices in by_owner for piece in slices)

        held = [[piece for piece in slices if piece.here.size] for slices in by_owner]
        sent = [[piece for piece in held[owner] if _same_copy(piece, here, owner)] for owner in range(len(held))]
        self.pieces = [piece for slices in held for piece in slices]
        self.sends = [_same_copy(piece, here, owner) for owner, slices in enumerate(held) for piece in slices]
        self._held_sizes = [sum(piece.here.size for piece in slices) for slices in held]
        self._sent_sizes = [sum(piece.here.size for piece in slices) for slices in sent]

        self._own = by_owner[here]
        members = range(len(by_owner) if self._group else 0)
        targets = [list(_boxes(self._own, member)) for member in members]
        sources = [list(_boxes(self._own, member, copy_of=here)) for member in members]
        self._target_sizes, self._source_sizes = _sizes(targets), _sizes(sources)
        self._targets, self._sources = tiles_of(targets), tiles_of(sources)

    def gather(self, directions: Sequence[Tensor]) -> Tensor:
        """The pieces that this rank sends, in `dtype` -> the matrices it owns, [N, A, B]; N = 0 if it owns none."""
        if not self._gathers:
            return torch.cat(list(directions)).to(self._device) if directions else self._empty(0, 0, 0)
        received = self._exchange(self._flat(directions), self._sent_sizes, self._source_sizes)
        matrices_NAB = self._empty(sum(map(len, self._own)), *(self._own[0].matrix_shape if self._own else (0, 0)))
        parts = torch.split(received, [prod(tiles.sizes) for tiles in self._sources])
        for tiles, part in zip(self._sources, parts, strict=True):
            tiles.of(matrices_NAB).copy_(part.view(tiles.sizes))
        return matrices_NAB

    def scatter(self, updates_NAB: Tensor) -> Sequence[Tensor]:
        """The updates of the matrices this rank owns -> those of `pieces`, on the parameters' device."""
        home = self.pieces[0].source.parameter.device if self.pieces else self._device
        if self._group is None:
            return torch.split(updates_NAB.to(home), list(map(len, self.pieces)))
        sent = self._flat([tiles.of(updates_NAB) for tiles in self._targets])
        received = self._exchange(sent, self._target_sizes, self._held_sizes).to(home)
        parts = torch.split(received, [piece.here.size for piece in self.pieces])
        return [part.view(piece.here.shape) for piece, part in zip(self.pieces, parts, strict=True)]

    def _exchange(self, sent: Tensor, sent_sizes: list[int], received_sizes: list[int]) -> Tensor:
        received = self._empty(sum(received_sizes))
        dist.all_to_all_single(received, sent, received_sizes, sent_sizes, group=self._group)
        return received

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        flat = [tensor.reshape(-1) for tensor in tensors]
        return (flat[0] if len(flat) == 1 else torch.cat(flat)).to(self._device) if flat else self._empty(0)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)


Index = tuple[int, int, int]
"""A place in [N, A, B], or the way from one place to another."""


class Tiles(NamedTuple):
    """Equal boxes within [N, A, B] at equal distances, on any number of levels; the sizes and steps of a box come last.

    Element (i, j, ...) is that at `start` + i * `steps[0]` + j * `steps[1]` + ...
    """

    sizes: tuple[int, ...]
    steps: tuple[Index, ...]
    start: Index

    def of(self, matrices_NAB: Tensor) -> Tensor:
        """The elements as a view of shape `sizes`."""
        strides = matrices_NAB.stride()
        offset = matrices_NAB.storage_offset() + _dot(self.start, strides)
        return matrices_NAB.as_strided(self.sizes, [_dot(step, strides) for step in self.steps], offset)


def tiles_of(boxes_by_rank: Sequence[Sequence[Box]]) -> list[Tiles]:
    """As few tiles as cover the boxes in their order."""
    units: tuple[Index, ...] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    boxes = (box for boxes in boxes_by_rank for box in boxes)
    tiles = [Tiles(box.shape, units, (box.matrices[0], box.rows[0], box.columns[0])) for box in boxes]
    while len(joined := list(_join(tiles))) < len(tiles):
        tiles = joined
    return tiles


def _join(tiles: Sequence[Tiles]) -> Iterator[Tiles]:
    """Neighbours of one form at equal distances as one, with a further dim."""
    first = 0
    while first < len(tiles):
        sizes, steps, start = tiles[first]
        last, step = first, None
        while last + 1 < len(tiles) and tiles[last + 1][:2] == (sizes, steps):
            further = _minus(tiles[last + 1].start, tiles[last].start)
            if min(further) < 0 or further != (step or further):
                break
            last, step = last + 1, further
        number = last + 1 - first
        yield tiles[first] if step is None else Tiles((number, *sizes), (step, *steps), start)
        first = last + 1


def _minus(a: Index, b: Index) -> Index:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def _dot(a: Index, b: Sequence[int]) -> int:
    return sum(map(operator.mul, a, b))


def _sizes(boxes_by_rank: Sequence[Sequence[Box]]) -> list[int]:
    return [sum(box.size for box in boxes) for boxes in boxes_by_rank]


def _same_copy(piece: Slice, member: int, other: int) -> bool:
    copies = piece.stack.spread.copies
    return copies[member] == copies[other]


def _boxes(slices: Sequence[Slice], member: int, copy_of: int | None = None) -> Iterator[Box]:
    """A rank's parts of an owner's `slices`, as boxes within [N, A, B]; neighbours of the same rows and columns in one.

    `copy_of`: only parts of the copy that this rank has a part of.
    """
    first = 0
    last: Box | None = None
    for piece in slices:
        box = piece.part_of(member)
        if box.size and (copy_of is None or _same_copy(piece, member, copy_of)):
            start, stop = (first + matrix - piece.start for matrix in box.matrices)
            if last and last[1:] == box[1:] and last.matrices[1] == start:
                last = last._replace(matrices=(last.matrices[0], stop))
            else:
                if last:
                    yield last
                last = box._replace(matrices=(start, stop))
        first += len(piece)
    if last:
        yield last
