"""Who writes which slice of the adapters, agreed on once, before training.

What a rank holds of each trained tensor does not change during a run. So all ranks tell each other once what they hold
and on which disk they write (`agree`), and every later save follows that plan without communication.

* Of a slice that several ranks of one place hold, one writes: the one that has least to write.
* A place is what ranks see as the same directory: on storage that all nodes share there is one; with node-local disks
  there is one for each node, and **each node writes all that it holds**, also what another node writes too. Under HSDP
  with a copy of the model per node every node's disk then has a complete checkpoint: any one node is enough to resume
  or to gather from, no byte of it crosses the link between nodes, and it takes no longer, since the disks write at the
  same time. Were one copy to write, losing its node would lose every checkpoint.
* Places that only together hold everything, as under FSDP over nodes, make up one copy together, in which each slice is
  written once.
* A generator's state is its rank's own: a copy has those of its ranks, and is complete without the others.
* Files of a source of batches are their rank's own as well, and none can be missed: where ranks write such files, all
  places make up one copy.
"""

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from glmforge.checkpoint.collective import all_gather, broadcast, rank
from glmforge.checkpoint.fit import TensorSpec
from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.save import RNG_PREFIX
from glmforge.parallel.placement import local_chunk

Slices = dict[str, Box]
"""Name of a tensor -> what is held or written of it."""


@dataclass(frozen=True)
class Holding:
    """What a rank holds and where it writes. Picklable."""

    place: tuple[str, ...]
    specs: dict[str, TensorSpec]
    slices: Slices
    writes_files: bool = False


@dataclass(frozen=True)
class WritePlan:
    """What the ranks write, as one of them knows it.

    Attributes:
        rank: of the one that knows it so.
        world_size: number of ranks.
        session: tells this start of the run from others; the same on all ranks.
        copies: sets of ranks: what each set writes is a complete checkpoint.
        specs: all tensors.
        slices: for each rank of this rank's copy, what it writes.
    """

    rank: int
    world_size: int
    session: str
    copies: tuple[tuple[int, ...], ...]
    specs: Mapping[str, TensorSpec]
    slices: Mapping[int, Slices]

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its copy, which writes what is no slice."""
        return bool(self.slices) and self.rank == min(self.slices)

    @property
    def own(self) -> Slices:
        """What this rank writes."""
        return self.slices.get(self.rank, {})

    @property
    def num_bytes(self) -> int:
        """Of the slices of a copy."""
        return sum(
            box.num_elements * self.specs[name].dtype.itemsize
            for slices in self.slices.values()
            for name, box in slices.items()
        )


def agree(tensors: Mapping[str, Tensor], place: Sequence[str], *, writes_files: bool = False) -> WritePlan:
    """Plan the saves of this run. All ranks call this together, once, each with its part of the tensors.

    `place` is equal for ranks that write to the same directory. Ranks that write nothing get a plan without slices.
    `writes_files`: this rank has files of its own to write besides.
    """
    specs = {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    holdings = all_gather(Holding(tuple(place), specs, _held(tensors), writes_files))
    session = broadcast(uuid.uuid4().hex, 0)
    return plan(holdings, rank(), session)


def plan(holdings: Sequence[Holding], own: int, session: str) -> WritePlan:
    """The plan of rank `own`, of what all ranks hold."""
    specs: dict[str, TensorSpec] = {}
    for holding in holdings:
        differing = [name for name, spec in holding.specs.items() if specs.get(name, spec) != spec]
        assert not differing, f"{differing[0]} differs in shape or dtype between ranks"
        specs |= holding.specs
    places, with_files = _copies(holdings, specs), [r for r, holding in enumerate(holdings) if holding.writes_files]
    if with_files:
        places = [[ranks for copy in places for ranks in copy]]
    copies = [_dealt(holdings, ranks, specs) for ranks in places]
    for r in with_files:
        copies[0].setdefault(r, {})
    mine: dict[int, Slices] = next((slices for slices in copies if own in slices), {})
    return WritePlan(own, len(holdings), session, tuple(tuple(sorted(slices)) for slices in copies), specs, mine)


def _held(tensors: Mapping[str, Tensor]) -> Slices:
    slices = {}
    for name, tensor in tensors.items():
        local, offsets = local_chunk(tensor)
        if local.numel():
            slices[name] = Box(offsets, tuple(local.shape))
    return slices


def _copies(holdings: Sequence[Holding], specs: Mapping[str, TensorSpec]) -> list[list[list[int]]]:
    """The copies, each as the ranks of its places. Places that complete no further copy belong to the last one."""
    places: dict[tuple[str, ...], list[int]] = {}
    for r, holding in enumerate(holdings):
        places.setdefault(holding.place, []).append(r)
    left, copies = list(places.values()), []
    while left:
        copy: list[list[int]] = []
        held: set[tuple[str, Box]] = set()
        for ranks in left:
            new = {item for r in ranks for item in holdings[r].slices.items() if _counts(item[0])} - held
            if new:
                held |= new
                copy.append(ranks)
        if not copy or not _is_complete(held, specs):
            break
        copies.append(copy)
        left = [ranks for ranks in left if ranks not in copy]
    assert copies, "the ranks together do not hold all tensors they list"
    copies[-1] += left
    return copies


def _is_complete(held: set[tuple[str, Box]], specs: Mapping[str, TensorSpec]) -> bool:
    found = {name: 0 for name in specs if _counts(name)}
    for name, box in held:
        found[name] += box.num_elements
    return all(num_elements == math.prod(specs[name].shape) for name, num_elements in found.items())


def _counts(name: str) -> bool:
    return not name.startswith(RNG_PREFIX)


def _dealt(
    holdings: Sequence[Holding], places: Sequence[Sequence[int]], specs: Mapping[str, TensorSpec]
) -> dict[int, Slices]:
    """Rank -> what it writes of a copy: each slice once, the largest first, by who has least to write (LPT)."""
    holders: dict[tuple[str, Box], list[int]] = {}
    for ranks in places:
        for r in ranks:
            for item in holdings[r].slices.items():
                holders.setdefault(item, []).append(r)

    def num_bytes(item: tuple[str, Box]) -> int:
        return item[1].num_elements * specs[item[0]].dtype.itemsize

    slices: dict[int, Slices] = {}
    written: dict[int, int] = dict.fromkeys((r for ranks in places for r in ranks), 0)
    for item in sorted(holders, key=lambda item: (len(holders[item]) > 1, -num_bytes(item), item[0])):
        writer = min(holders[item], key=written.__getitem__)
        written[writer] += num_bytes(item)
        slices.setdefault(writer, {})[item[0]] = item[1]
    return slices
