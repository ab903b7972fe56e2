"""From the bandwidth of pairs of hosts to the hosts and paths that are slow.

What two hosts reach together is what the slowest of three gives: the one host, the other, the path between. So a host
is as fast as it was with its best partner, and is slow if even that is slow. Where two hosts that are not slow reach
little together, it is the path. Paths that are slow together (between all hosts of one switch and all of another) are
told as one, as far as the order of the hosts lets them lie in one block.

Noise takes away, hardly ever adds: of several measurements of a pair the best one counts.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_TYPICAL = 0.9
"""The quantile of what was measured that stands for a pair of good hosts: right as long as more than a tenth of the
pairs are good, so that half of the hosts may be slow."""


_TOGETHER = 0.999
"""Share of the pairs between two blocks of hosts that must be slow: of many thousand one is fast by chance. One host
whose paths are all fast is a larger share of any block."""


class SlowHost(NamedTuple):
    """A host that reached little with all of its partners; positions and GB/s."""

    host: int
    bandwidth: float


class SlowPath(NamedTuple):
    """Two hosts, or two sets of hosts, each fast with others, and slow with each other; positions and GB/s.

    `confirmed`: measured again at least once and found slow again.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    bandwidth: float
    confirmed: bool


def typical(best: Floats) -> float:
    """The bandwidth of a pair of good hosts; NaN if nothing was measured."""
    measured = best[np.isfinite(best)]
    return float(np.quantile(measured, _TYPICAL)) if measured.size else float("nan")


def host_speeds(best: Floats) -> Floats:
    """[host]: what each reached with its best partner; NaN of those that were not measured."""
    return np.where(np.isfinite(best), best, -np.inf).max(axis=1, initial=-np.inf)


def slow_hosts(best: Floats, reference: float, slow_below: float) -> list[SlowHost]:
    """Hosts that reached less than `slow_below` of the reference with each of two partners or more."""
    speeds = host_speeds(best)
    several = np.isfinite(best).sum(axis=1) > 1
    found = np.flatnonzero(several & (speeds < slow_below * reference))
    return [SlowHost(int(host), float(speeds[host])) for host in found]


def slow_pairs(best: Floats, reference: float, slow_below: float) -> Bools:
    """[host, host]: whether two hosts reached less than `slow_below` of what the slower of them reaches otherwise.

    A slow host's own speed is the median over its good partners: the best of a thousand noisy values is not what
    each of them should be.
    """
    slow = [one.host for one in slow_hosts(best, reference, slow_below)]
    speeds = np.full(best.shape[0], reference)
    good = np.setdiff1d(np.arange(best.shape[0]), slow)
    for host in slow:
        with_good = best[host, good]
        with_good = with_good[np.isfinite(with_good)]
        speeds[host] = np.median(with_good) if with_good.size else 0.0
    expected = np.minimum(speeds[:, None], speeds[None, :])
    with np.errstate(invalid="ignore"):
        return np.isfinite(best) & (best < slow_below * expected)


def slow_paths(best: Floats, slow: Bools, confirmed: Bools) -> list[SlowPath]:
    """The slow pairs, those put together that make up what was measured between two neighbouring blocks of hosts, or
    the share `_TOGETHER` of it."""
    size = 1 << max(0, (best.shape[0] - 1).bit_length())
    return _within(0, size, best, slow, confirmed) if slow.any() else []


def unknown_paths(wanted: Bools) -> list[SlowPath]:
    """[host, host]: pairs of which nothing is known; put together like slow ones."""
    nothing = np.where(wanted, 0.0, np.nan)
    return slow_paths(nothing, wanted, np.zeros_like(wanted))


def _within(low: int, size: int, best: Floats, slow: Bools, confirmed: Bools) -> list[SlowPath]:
    """Of a block of hosts: between its halves, and within each."""
    if size == 1 or not slow[low : low + size, low : low + size].any():
        return []
    half = size // 2
    return [
        *_between(low, low + half, half, best, slow, confirmed),
        *_within(low, half, best, slow, confirmed),
        *_within(low + half, half, best, slow, confirmed),
    ]


def _between(low: int, high: int, size: int, best: Floats, slow: Bools, confirmed: Bools) -> list[SlowPath]:
    """Between the blocks of `size` hosts from `low` and from `high` on."""
    rows, columns = slice(low, low + size), slice(high, high + size)
    is_slow = slow[rows, columns]
    if not is_slow.any():
        return []
    measured = np.isfinite(best[rows, columns])
    if size == 1 or (is_slow[measured].mean() >= _TOGETHER and measured.sum() > 1):
        first = tuple(map(int, low + np.flatnonzero(measured.any(axis=1))))
        second = tuple(map(int, high + np.flatnonzero(measured.any(axis=0))))
        bandwidth = float(np.median(best[rows, columns][measured]))
        return [SlowPath(first, second, bandwidth, bool((confirmed[rows, columns] & is_slow).any()))]
    half = size // 2
    return [
        path
        for one in (low, low + half)
        for other in (high, high + half)
        for path in _between(one, other, half, best, slow, confirmed)
    ]
