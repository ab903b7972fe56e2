"""How long a collective takes: by its kind and size, the ranks of the group in each node, and the links they use.

The usual model (Hockney's alpha and beta; Thakur et al., 2005; NCCL's ring): a time for every message that has to
follow another, and the bytes of the busiest link over its bandwidth.

- What all ranks are to have, or add to, goes round a ring. Each rank passes on all but its own part over NVLink; into
  each node it comes once, over the adapters of all the group's ranks there. An all-reduce scatters and gathers.
- In an exchange each rank sends to every other what is theirs, to those in other nodes over its own adapter.
- A pipeline's message goes to the neighbour.

Bytes are those of the larger of input and output, on each rank. Where a collective was measured
(`Machine.collectives`), its points are interpolated instead, in bytes.
"""

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from glmforge.plan.machine.machine import PCIE_BANDWIDTH, Machine
from glmforge.plan.machine.measured import CollectiveKind, CollectivePoint

NVLINK_REACHED = 0.8
"""Of NVLink's bandwidth by large collectives: 360 to 370 of 450 GB/s, as NCCL's tests show on nodes of 8 H100."""
NETWORK_REACHED = {"ib": 0.95, "roce": 0.9, "tcp": 1.0}
"""Of the adapters' bandwidth, by the family of the network. That of TCP is taken to be what was measured."""
_USUAL_REACHED = 0.9
LAUNCH = 10e-6
"""Seconds until a collective's kernel runs on all ranks and has found the others."""
NVLINK_LATENCY = 1e-6
"""Seconds of a step of a ring inside a node."""


class Group(NamedTuple):
    """The ranks of a collective, how many of them are in one node, and how many such groups share a machine's cores."""

    num_ranks: int
    ranks_per_node: int
    groups: int = 1

    @property
    def num_nodes(self) -> int:
        return math.ceil(self.num_ranks / self.ranks_per_node)


class LinkBytes(NamedTuple):
    """What each rank sends in a collective: inside its node, and over its adapter to others."""

    inside: float
    outside: float


def link_bytes(kind: CollectiveKind, num_bytes: float, group: Group) -> LinkBytes:
    """How the bytes of a collective spread over the links."""
    ranks, near = group.num_ranks, min(group.ranks_per_node, group.num_ranks)
    if ranks == 1:
        return LinkBytes(0, 0)
    if kind == "send":
        return LinkBytes(num_bytes, 0) if near == ranks else LinkBytes(0, num_bytes)
    if kind == "all_to_all":
        return LinkBytes(num_bytes * (near - 1) / ranks, num_bytes * (ranks - near) / ranks)
    times = (2 if kind == "all_reduce" else 1) * num_bytes * (ranks - 1) / ranks
    return LinkBytes(times * (near > 1), times / near * (near < ranks))


def collective_seconds(kind: CollectiveKind, num_bytes: float, group: Group, machine: Machine) -> float:
    """Of one collective of `num_bytes` when nothing else uses the links."""
    if group.num_ranks == 1 or not num_bytes:
        return 0.0
    points = _points(machine.collectives, kind, group)
    if points:
        return _interpolated(points, num_bytes)
    sent = link_bytes(kind, num_bytes, group)
    inside = sent.inside / (NVLINK_REACHED * (machine.accelerator.nvlink_bandwidth or PCIE_BANDWIDTH / NVLINK_REACHED))
    outside = sent.outside / network_bandwidth(machine)
    return max(inside, outside) + _latency(kind, group, machine)


def network_bandwidth(machine: Machine) -> float:
    """Bytes per second each way that a rank's collectives reach of the network."""
    family = machine.network.name.rstrip("0123456789.")
    return NETWORK_REACHED.get(family, _USUAL_REACHED) * machine.link_bandwidth


def _latency(kind: CollectiveKind, group: Group, machine: Machine) -> float:
    """Of the messages that follow one another: a ring's steps, or one exchange with all others at once."""
    network = machine.network.latency
    if kind in ("send", "all_to_all"):
        return LAUNCH + (network if group.num_nodes > 1 else NVLINK_LATENCY)
    # NCCL's trees take the place of rings for an all-reduce, and PAT's for the others where a node has one rank.
    in_tree = kind == "all_reduce" or group.ranks_per_node == 1
    across = math.log2(group.num_nodes) if in_tree else group.num_nodes - 1
    inside = min(group.ranks_per_node, group.num_ranks) - 1
    return LAUNCH + (2 if kind == "all_reduce" else 1) * (across * network + inside * NVLINK_LATENCY)


@lru_cache(maxsize=1024)
def _points(points: tuple[CollectivePoint, ...], kind: CollectiveKind, group: Group) -> tuple[tuple[int, float], ...]:
    """(bytes, seconds) of a kind in such a group, or of the groups measured that are nearest to it in size."""
    of_kind = [point for point in points if point.kind == kind]
    if not of_kind:
        return ()
    nearest = min(_distance(point, group) for point in of_kind)
    chosen = [point for point in of_kind if _distance(point, group) == nearest]
    return tuple(sorted({point.bytes: point.seconds for point in chosen}.items()))


def _distance(point: CollectivePoint, group: Group) -> tuple[float, ...]:
    """By the number of ranks, then by how many of them are in a node, then by the groups at work at the same time."""
    pairs = (
        (point.num_ranks, group.num_ranks),
        (point.ranks_per_node, group.ranks_per_node),
        (point.groups, group.groups),
    )
    return tuple(abs(math.log2(measured / asked)) for measured, asked in pairs)


def _interpolated(points: tuple[tuple[int, float], ...], num_bytes: float) -> float:
    """Straight lines between points; below the first its time, beyond the last its rate."""
    if num_bytes <= points[0][0]:
        return points[0][1]
    for (low, fast), (high, slow) in pairwise(points):
        if num_bytes <= high:
            return fast + (slow - fast) * (num_bytes - low) / (high - low)
    return points[-1][1] * num_bytes / points[-1][0]
