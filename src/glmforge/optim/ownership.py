"""Which rank orthogonalises which matrices, and which of them together.

Each matrix has one owner among the ranks that hold parts or copies of it; the most expensive are given away first, each
to the rank with least to do. A rank's matrices are cut into batches of one shape and bounded size, and the k-th batches
of all ranks of a union form a round: one exchange of parts, one orthogonalisation on each rank, one exchange of
updates. Shapes may differ from rank to rank within a round, so that no rank waits while others orthogonalise another
shape, and a model of few matrices on many ranks takes a single round.

The plan depends only on shapes, layout and the order of the parameters: every rank comes to the same one by itself.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

import torch

from glmforge.kernels.target import kernel_device
from glmforge.optim.matrices import Slice, Stack, stacks_of
from glmforge.optim.sharding import Union, union_ranks
from glmforge.optim.update_rule import TrainedParameter
from glmforge.parallel.world import World


@dataclass(frozen=True, eq=False)
class Round:
    """The slices of each owner, by rank of the union, those of one owner being of one matrix shape.

    `union` is None for matrices that are whole on this rank and nowhere else; then this rank is the only owner.
    `gathers`: whether matrices must be assembled from parts; else their owners hold them whole.
    """

    union: Union | None
    gathers: bool
    slices_by_owner: tuple[tuple[Slice, ...], ...]


def batch_elements(device: torch.device) -> int:
    """How many elements one owner orthogonalises at a time (or one matrix, if that has more).

    On a CPU a batch had best stay in the cache: 2^20 elements are 20 % faster than 2^26. A GPU is filled by
    eight expert matrices of GLM-4.5; they bound its temporary memory to some 12 bytes per element, 0.8 GB.
    """
    return 2**20 if kernel_device(device) == "cpu" else 2**26


def plan_rounds(parameters: Sequence[TrainedParameter], world: World) -> list[Round]:
    """All matrices that this rank has a part in, in rounds. All ranks of a union get the same rounds of it, in order.

    Those without communication come first, then those of experts.
    """
    stacks = [stack for source in parameters for stack in stacks_of(source, world.layout, world.rank)]
    limit = batch_elements(world.device)
    rounds = [Round(None, False, (slices,)) for slices in _pack(_local_slices(stacks), limit)]
    unions: tuple[Union, ...] = ("expert_stage", "stage")
    for union in unions:
        members = [stack for stack in stacks if stack.union == union]
        loads = _local_loads(members, len(union_ranks(world.layout, world.rank, union)))
        for is_cut in (False, True):
            shared = [stack for stack in members if not stack.spread.is_local and stack.spread.is_cut == is_cut]
            by_owner = [_pack(owned, limit) for owned in _assign(shared, loads)]
            rounds += [Round(union, is_cut, pieces) for pieces in zip_longest(*by_owner, fillvalue=())]
    return rounds


def assign_owners(costs: Sequence[int], holders: Sequence[Sequence[int]], loads: list[int]) -> list[int]:
    """An owner for each matrix, one of its holders: most expensive first, each to the one that has least to do so far.

    `loads` is what each rank has to do already, and is brought up to date.
    """
    owners = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        owners[item] = min(holders[item], key=loads.__getitem__)
        loads[owners[item]] += costs[item]
    return owners


def _local_slices(stacks: Sequence[Stack]) -> list[Slice]:
    local = (stack for stack in stacks if stack.spread.is_local)
    slices = (Slice(stack, *stack.spread.boxes[stack.here].matrices) for stack in local)
    return [piece for piece in slices if len(piece)]


def _local_loads(stacks: Sequence[Stack], num_ranks: int) -> list[int]:
    """What each rank of a union has to do without communication."""
    loads = [0] * num_ranks
    for stack in stacks:
        if stack.spread.is_local:
            for run in stack.spread.runs:
                loads[run.holders[0]] += (run.stop - run.start) * _cost(stack.spread.matrix_shape)
    return loads


def _assign(stacks: Sequence[Stack], loads: list[int]) -> list[list[Slice]]:
    """The slices of each owner, by rank of the union. Of equal matrices an owner gets consecutive ones."""
    runs = [(stack, run) for stack in stacks for run in stack.spread.runs]
    costs = [_cost(stack.spread.matrix_shape) for stack, run in runs for _ in range(run.start, run.stop)]
    holders = [run.holders for _, run in runs for _ in range(run.start, run.stop)]
    owners = iter(assign_owners(costs, holders, loads))
    by_owner: list[list[Slice]] = [[] for _ in loads]
    for stack, run in runs:
        start = run.start
        for owner, same in groupby(sorted(next(owners) for _ in range(run.start, run.stop))):
            stop = start + len(list(same))
            by_owner[owner].append(Slice(stack, start, stop))
            start = stop
    return by_owner


def _cost(matrix_shape: tuple[int, int]) -> int:
    """Multiplications of one Newton-Schulz step on a matrix."""
    small, large = sorted(matrix_shape)
    return small * small * (2 * large + small)


def _pack(slices: Sequence[Slice], max_elements: int) -> list[tuple[Slice, ...]]:
    """One owner's slices in batches of one shape, each as full as `max_elements` allows; the most expensive ones first.

    What an owner sends back counts as often as there are copies.
    """
    families: dict[tuple[tuple[int, int], int], list[Slice]] = {}
    for piece in slices:
        spread = piece.stack.spread
        families.setdefault((spread.matrix_shape, spread.num_copies), []).append(piece)
    batches: list[tuple[Slice, ...]] = []
    for (shape, num_copies), members in families.items():
        batches += _fill(members, max(1, max_elements // (math.prod(shape) * num_copies)))
    return sorted(
        batches, key=lambda batch: -sum(len(piece) * _cost(piece.stack.spread.matrix_shape) for piece in batch)
    )


def _fill(slices: Sequence[Slice], limit: int) -> Iterator[tuple[Slice, ...]]:
    """Cut slices into tuples of `limit` matrices each (the last one fewer)."""
    batch: list[Slice] = []
    room = limit
    for piece in slices:
        start = piece.start
        while start < piece.stop:
            batch.append(Slice(piece.stack, start, min(start + room, piece.stop)))
            start, room = batch[-1].stop, room - len(batch[-1])
            if room == 0:
                yield tuple(batch)
                batch, room = [], limit
    if batch:
        yield tuple(batch)
