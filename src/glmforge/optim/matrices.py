"""A parameter as stacks of equal matrices, and where their parts lie.

Muon and LAMB work on one linear map at a time. A 2-D parameter is a stack of one matrix, a packed expert tensor
[E, f * A, B] one of f * E: expert after expert, each with its f fused blocks of rows (gate and up: 2). Where ranks
share the rows, their borders need not be those of the blocks; then each of the f blocks is a stack of its own, of E
matrices. Either way a rank's part of a stack is a box: some consecutive matrices, and of each the same rows and
columns.

A, B: rows and columns of a matrix; f: fused matrices; E: experts.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from torch import Tensor

from glmforge.config.layout import Layout
from glmforge.optim.sharding import UNION_AXES, Span, Split, Union, chunk, local_part, splits_of, union_of, union_ranks
from glmforge.optim.update_rule import TrainedParameter


class Box(NamedTuple):
    """A rank's part of a stack: which matrices, and which rows and columns of each."""

    matrices: Span
    rows: Span
    columns: Span

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of matrices, rows and columns; a rank without a part has none of some."""
        (n_start, n_stop), (a_start, a_stop), (b_start, b_stop) = self
        return n_stop - n_start, a_stop - a_start, b_stop - b_start

    @property
    def size(self) -> int:
        return prod(self.shape)


class MatrixRange(NamedTuple):
    """Consecutive matrices that the same ranks hold, whole or in part."""

    start: int
    stop: int
    holders: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Spread:
    """How the matrices of a stack lie on the ranks of a union; all tuples are by rank within it.

    `num_matrices`: of the whole stack, those included that no rank of the union holds (the experts of other ep ranks).
    `boxes`: the part of each rank. `copies`: which copy of the parameter it is a part of. `first_rows`: where in the
    rank's part of the parameter its rows of this stack begin; None where the stack is the whole parameter.
    """

    num_matrices: int
    matrix_shape: tuple[int, int]
    boxes: tuple[Box, ...]
    copies: tuple[tuple[int, ...], ...]
    first_rows: tuple[int, ...] | None

    @cached_property
    def runs(self) -> tuple[MatrixRange, ...]:
        """All matrices of the stack, cut where their holders change."""
        held = [(member, box.matrices) for member, box in enumerate(self.boxes) if box.size]
        edges = sorted({edge for _, matrices in held for edge in matrices})
        holders: list[list[int]] = [[] for _ in edges]
        positions = {edge: position for position, edge in enumerate(edges)}
        for member, (start, stop) in held:
            for position in range(positions[start], positions[stop]):
                holders[position].append(member)
        return tuple(MatrixRange(*span, tuple(ranks)) for span, ranks in zip(pairwise(edges), holders, strict=False))

    @cached_property
    def is_cut(self) -> bool:
        """Whether some rank has only a part of a matrix."""
        return any(box.size and box.shape[1:] != self.matrix_shape for box in self.boxes)

    @cached_property
    def is_local(self) -> bool:
        """Whether each matrix lies on one rank only, and whole."""
        return not self.is_cut and all(len(run.holders) == 1 for run in self.runs)

    @cached_property
    def num_copies(self) -> int:
        return len(set(self.copies))

    def view(self, part: Tensor, member: int) -> Tensor:
        """The box of a rank, [matrices, rows, columns], as a view of its part of the parameter (or of its gradient).

        Not called with an empty box.
        """
        _, num_rows, num_columns = self.boxes[member].shape
        if self.first_rows is None:
            return part.view(-1, num_rows, num_columns)
        first = self.first_rows[member]
        return part.view(-1, *part.shape[-2:])[:, first : first + num_rows]


@dataclass(frozen=True, eq=False)
class Stack:
    """Equal matrices of one parameter. `here` is this rank within the union."""

    source: TrainedParameter
    spread: Spread
    here: int

    @property
    def union(self) -> Union:
        """The ranks that hold the parameter between them."""
        return union_of(self.source.parameter)

    def of(self, tensor: Tensor) -> Tensor:
        """This rank's box of the parameter, its gradient or its momentum; see `Spread.view`."""
        return self.spread.view(local_part(tensor), self.here)


@dataclass(frozen=True)
class Slice:
    """Matrices `start` to `stop` of a stack: the unit of work."""

    stack: Stack
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def source(self) -> TrainedParameter:
        return self.stack.source

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(A, B) of one whole matrix."""
        return self.stack.spread.matrix_shape

    @property
    def here(self) -> Box:
        """This rank's part."""
        return self.part_of(self.stack.here)

    def part_of(self, member: int) -> Box:
        """The part of these matrices on a rank of the union; those it has nothing of are omitted."""
        box = self.stack.spread.boxes[member]
        start, stop = max(self.start, box.matrices[0]), min(self.stop, box.matrices[1])
        return box._replace(matrices=(start, stop) if start < stop and box.size else (self.start, self.start))

    def of(self, tensor: Tensor) -> Tensor:
        """This rank's part of these matrices of the parameter, its gradient or its momentum, as a view."""
        first = self.stack.spread.boxes[self.stack.here].matrices[0]
        start, stop = self.here.matrices
        return self.stack.of(tensor)[start - first : stop - first]


def stacks_of(source: TrainedParameter, layout: Layout, rank: int) -> list[Stack]:
    """The stacks of a parameter as `rank` sees them. Raises `ValueError` as `spreads_of` does."""
    spreads, here = spreads_of(source.parameter, source.num_fused, layout, rank)
    return [Stack(source, spread, here) for spread in spreads]


def spreads_of(parameter: Tensor, num_fused: int, layout: Layout, rank: int) -> tuple[tuple[Spread, ...], int]:
    """How the stacks of a parameter lie on the ranks that hold it between them, and which of these `rank` is.

    Raises `ValueError` for other than two or three dims, and as `splits_of` does.
    """
    shape, union = tuple(parameter.shape), union_of(parameter)
    if len(shape) not in (2, 3):
        raise ValueError(f"Muon and LAMB train matrices and stacks of matrices, not a parameter of shape {list(shape)}")
    ranks = union_ranks(layout, rank, union)
    return _spreads(shape, num_fused, splits_of(parameter), union, layout, ranks), ranks.index(rank)


@lru_cache(maxsize=256)
def _spreads(
    shape: tuple[int, ...], num_fused: int, splits: tuple[Split, ...], union: Union, layout: Layout, ranks: range
) -> tuple[Spread, ...]:
    """Equal for all parameters of one shape and layout, of which a model has a dozen kinds."""
    coordinates = _coordinates(layout, ranks)
    spans = [((0, 1), *chunk(shape, splits, where))[-3:] for where in coordinates]
    copied = [axis for axis in UNION_AXES[union] if axis not in {split.axis for split in splits}]
    copies = tuple(tuple(where[axis] for axis in copied) for where in coordinates)
    num_experts = shape[0] if len(shape) == 3 else 1
    num_rows = shape[-2] // num_fused
    matrix_shape = num_rows, shape[-1]
    if num_fused == 1:
        return (Spread(num_experts, matrix_shape, tuple(Box(*span) for span in spans), copies, None),)
    if all(split.dim != len(shape) - 2 for split in splits):
        boxes = (Box((e[0] * num_fused, e[1] * num_fused), (0, num_rows), columns) for e, _, columns in spans)
        return (Spread(num_experts * num_fused, matrix_shape, tuple(boxes), copies, None),)
    blocks = []
    for top in range(0, shape[-2], num_rows):
        rows = [_within(span[1], top, top + num_rows) for span in spans]
        boxes = (Box(e, (a[0] - top, a[1] - top), columns) for (e, _, columns), a in zip(spans, rows, strict=True))
        first_rows = (a[0] - span[1][0] for span, a in zip(spans, rows, strict=True))
        blocks.append(Spread(num_experts, matrix_shape, tuple(boxes), copies, tuple(first_rows)))
    return tuple(blocks)


def _within(span: Span, low: int, high: int) -> Span:
    """The part of `span` between two borders, empty and between them if disjoint."""
    start, stop = (min(max(edge, low), high) for edge in span)
    return start, stop


@lru_cache(maxsize=8)
def _coordinates(layout: Layout, ranks: range) -> list[dict[str, int]]:
    return [layout.coordinates(rank) for rank in ranks]
