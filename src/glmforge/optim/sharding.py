"""Which part of a tensor lies on which rank, by arithmetic alone.

FSDP2, tensor and expert parallelism keep parameters, gradients and our state as DTensors. Their optimizer's arithmetic
is on the plain local parts: DTensor's dispatch costs more than the arithmetic of a small tensor, and would run
Newton-Schulz as a chain of collectives.

A tensor is cut by one axis after another, `tp` or `ep` first and `fsdp` or `efsdp` within their blocks, each by
DTensor's rule: equal blocks rounded up, the last ones short or empty. The axes that do not cut it hold copies. Since
the layout gives the coordinates of every rank, each rank knows the parts of all others without asking: the optimizer
plans its exchanges before the first step, and in a dry run without any process group behind it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement

from glmforge.config.layout import Layout

Union = Literal["stage", "expert_stage"]
"""The ranks that hold a tensor between them; see `glmforge.parallel.world`."""

UNION_AXES: dict[Union, tuple[str, ...]] = {
    "stage": ("dp_replicate", "fsdp", "tp"),
    "expert_stage": ("dp_replicate", "efsdp"),
}
_CUT_FIRST, _CUT_NEXT = ("tp", "ep"), ("fsdp", "efsdp")


class Chunk(NamedTuple):
    """A rank's part of a trained parameter: `weight` and `grad` (None: it has none) are live, and `copies` ranks of a
    pipeline stage hold the same part."""

    name: str
    weight: Tensor
    grad: Tensor | None
    copies: int


Span = tuple[int, int]
"""Start and stop along a dim."""


class Split(NamedTuple):
    """A mesh axis that cuts a tensor, its number of ranks, and the dim it cuts."""

    axis: str
    size: int
    dim: int


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part, sharing memory with `tensor`, under `no_grad`. A plain tensor is its own part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def chunks_of(named_parameters: Iterable[tuple[str, Tensor]], layout: Layout) -> Iterator[Chunk]:
    """This rank's parts of those parameters that require a gradient."""
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            grad = None if parameter.grad is None else local_part(parameter.grad)
            yield Chunk(name, local_part(parameter.detach()), grad, num_copies(parameter, layout))


def splits_of(tensor: Tensor) -> tuple[Split, ...]:
    """What cuts `tensor`, outermost first; axes of one rank cut nothing, and a plain tensor is not cut.

    Raises `ValueError` for a gradient that is still to be reduced, and for any layout but those of
    `glmforge.parallel`: at most one of tp and ep, then at most one of fsdp and efsdp.
    """
    if not isinstance(tensor, DTensor):
        return ()
    names, placements = tensor.device_mesh.mesh_dim_names or (), tensor.placements
    if any(place.is_partial() for place in placements):
        raise ValueError(f"a tensor placed {placements} holds unreduced partial sums")
    cuts = {
        name: (Split(name, size, cast(Shard, place).dim % tensor.ndim), place)
        for name, size, place in zip(names, tensor.device_mesh.shape, placements, strict=False)
        if size > 1 and not place.is_replicate()
    }
    ordered = [cuts.pop(axis) for axes in (_CUT_FIRST, _CUT_NEXT) for axis in axes if axis in cuts]
    splits = tuple(split for split, _ in ordered)
    nested = all(_nests(place, split, splits[:position]) for position, (split, place) in enumerate(ordered))
    if not names or cuts or not nested:
        raise ValueError(f"the optimizer knows no tensor placed {placements} over the axes {names}")
    return splits


def _nests(place: Placement, split: Split, outer: Sequence[Split]) -> bool:
    """Whether DTensor too cuts the blocks that `outer` leaves; a plain `Shard` would cut before later mesh axes."""
    return getattr(place, "split_factor", 1) == math.prod(other.size for other in outer if other.dim == split.dim)


def union_of(tensor: Tensor) -> Union:
    """The ranks that hold parts or copies of `tensor`, for experts those of the same ep rank."""
    names = tensor.device_mesh.mesh_dim_names or () if isinstance(tensor, DTensor) else ()
    return "expert_stage" if "ep" in names or "efsdp" in names else "stage"


def union_ranks(layout: Layout, rank: int, union: Union) -> range:
    """The ranks of a union around `rank`, in the order of its process group."""
    first = rank - rank % layout.stage_ranks
    if union == "stage":
        return range(first, first + layout.stage_ranks)
    return range(first + rank % layout.ep, first + layout.stage_ranks, layout.ep)


def chunk(shape: Sequence[int], splits: Sequence[Split], coordinates: Mapping[str, int]) -> tuple[Span, ...]:
    """The (start, stop) along each dim of the part of a tensor of (global) `shape` that lies at `coordinates`.

    The part of a rank that gets nothing is empty, start == stop, along a dim.
    """
    spans = [(0, length) for length in shape]
    for axis, size, dim in splits:
        start, stop = spans[dim]
        block = -(-(stop - start) // size)
        first = min(start + block * coordinates[axis], stop)
        spans[dim] = first, min(first + block, stop)
    return tuple(spans)


def own_spans(tensor: Tensor) -> tuple[Span, ...]:
    """Where this rank's part of `tensor` lies in the whole; by arithmetic, also where tensors have no data."""
    splits = splits_of(tensor)
    coordinates = {axis: cast(DTensor, tensor).device_mesh.get_local_rank(axis) for axis, _, _ in splits}
    return chunk(tensor.shape, splits, coordinates)


def num_copies(tensor: Tensor, layout: Layout) -> int:
    """How many ranks of a pipeline stage hold each element of `tensor`."""
    return layout.stage_ranks // math.prod(split.size for split in splits_of(tensor))
