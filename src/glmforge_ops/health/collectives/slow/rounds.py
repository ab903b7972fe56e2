"""Which hosts exchange data with which, at what time: every two hosts once, in log2(N) rounds.

Hosts have positions 0 to N - 1. In an exchange with offset d, 1 <= d < 2^K, position p is paired with p XOR d: whatever
d is, these pairs are disjoint, so that all can be measured at the same time, and over all d every two positions are
paired exactly once. Round k has the offsets from 2^(k-1) to 2^k - 1: groups of 2^k neighbours, each of which is
measured between its two halves. Where N is no power of two, who has no partner waits.

So the first round measures neighbours, the second pairs of neighbours, ..., the last one half of all hosts against
the other half: hosts that hang on one switch should stand together in the order of the hosts.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Partners = npt.NDArray[np.int32]
"""[exchange, position]: with whom each host exchanges data; -1 with nobody."""


Pairs = npt.NDArray[np.bool_]
"""[position, position]: some pairs of hosts."""


class Round(NamedTuple):
    """Disjoint groups of hosts that are measured at the same time.

    Attributes:
        name: what is measured, in words.
        partners: [exchange, position].
        groups: positions of each group; hosts in none do nothing.
    """

    name: str
    partners: Partners
    groups: tuple[tuple[int, ...], ...]

    @property
    def num_exchanges(self) -> int:
        """That follow one another, on the host that has the most."""
        return int((self.partners >= 0).sum(axis=0).max(initial=0))

    def pairs(self) -> tuple[Partners, Partners]:
        """The two sides of each exchange, the lower position first."""
        exchanges, positions = np.nonzero(self.partners > np.arange(self.partners.shape[1]))
        return positions.astype(np.int32), self.partners[exchanges, positions]


def num_levels(num_hosts: int) -> int:
    """Rounds in which every two hosts meet."""
    return max(0, (num_hosts - 1).bit_length())


def halves_round(
    level: int, num_hosts: int, leave_out: Pairs, max_partners: int | None, unfinished: Pairs | None = None
) -> Round:
    """Groups of 2^level neighbours, each measured between its halves.

    Args:
        leave_out: [position, position]: pairs that are not to be measured.
        max_partners: of a host; None is all of the other half.
        unfinished: [position, position]: pairs of earlier rounds, within a half, that are measured as well.
    """
    half = 1 << (level - 1)
    offsets = np.arange(half, half + min(half, max_partners or half), dtype=np.int32)
    partners = _paired(offsets, ~leave_out)
    if unfinished is not None:
        one, other = np.nonzero(unfinished)
        earlier = np.unique(one ^ other).astype(np.int32)
        partners = np.concatenate([partners, _paired(earlier[earlier < half], unfinished)])
    used = partners[(partners >= 0).any(axis=1)]
    blocks = [range(low, min(low + 2 * half, num_hosts)) for low in range(0, num_hosts, 2 * half)]
    busy = set(np.nonzero(used >= 0)[1].tolist())
    groups = tuple(group for block in blocks if len(group := tuple(p for p in block if p in busy)) > 1)
    name = "neighbours" if level == 1 else f"groups of {2 * half} hosts, half against half"
    return Round(name, used, groups)


def _paired(offsets: Partners, wanted: Pairs) -> Partners:
    """[exchange, position]: who is paired at each offset, of the pairs that are wanted."""
    num_hosts = len(wanted)
    positions = np.arange(num_hosts, dtype=np.int32)
    partners = positions[None, :] ^ offsets[:, None]
    partners[partners >= num_hosts] = -1
    partners[(partners >= 0) & ~wanted[positions[None, :], partners]] = -1
    return partners


def chosen_round(
    name: str,
    pairs: Iterable[tuple[int, int]],
    num_hosts: int,
    most: int,
    repeats: int,
    unfinished: Pairs | None = None,
) -> Round:
    """Given pairs, each measured `repeats` times, in as few exchanges as it takes to keep them disjoint; then the
    unfinished ones once.

    Pairs that would need more than `most` exchanges of a host are left out, the last ones first.
    """
    rows: list[Partners] = []
    free: list[int] = [0] * num_hosts
    """For each host, a bit for every exchange in which it has a partner."""
    parent = list(range(num_hosts))
    for first, second in pairs:
        taken = free[first] | free[second]
        place = (~taken & (taken + 1)).bit_length() - 1  # the first in which both are free
        if place >= most:
            continue
        if place == len(rows):
            rows.append(np.full(num_hosts, -1, dtype=np.int32))
        rows[place][first], rows[place][second] = second, first
        free[first] |= 1 << place
        free[second] |= 1 << place
        parent[_root(parent, first)] = _root(parent, second)
    several = np.array(rows, dtype=np.int32).reshape(len(rows), num_hosts)
    once = np.empty((0, num_hosts), dtype=np.int32)
    if unfinished is not None:
        one, other = np.nonzero(unfinished)
        once = _paired(np.unique(one ^ other).astype(np.int32), unfinished)
        for first, second in zip(one.tolist(), other.tolist(), strict=True):
            parent[_root(parent, first)] = _root(parent, second)
    partners = np.concatenate([*[several] * repeats, once])
    members: dict[int, list[int]] = {}
    for host in np.flatnonzero((partners >= 0).any(axis=0)).tolist():
        members.setdefault(_root(parent, host), []).append(host)
    return Round(name, partners, tuple(map(tuple, members.values())))


def _root(parent: list[int], host: int) -> int:
    while parent[host] != host:
        parent[host] = parent[parent[host]]
        host = parent[host]
    return host
