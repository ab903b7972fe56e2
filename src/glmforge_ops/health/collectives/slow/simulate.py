"""Hosts that exist in numbers only: speeds, slow paths, lost hosts, and measurements with noise.

The model: what two hosts reach is the least of the two hosts' bandwidths and that of the path between them, times
noise. Every measurement scatters (lognormal), and some are disturbed: other traffic takes part of the bandwidth for as
long as that measurement lasts. Paths do not influence each other; where links between switches are shared, plant a slow
path between two blocks of hosts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from glmforge_ops.health.collectives.slow.explain import Floats
from glmforge_ops.health.collectives.slow.rounds import Round
from glmforge_ops.health.collectives.slow.search import Findings, Measured, Search

GOOD = 50.0
"""GB/s of a host and a path: an adapter of 400 Gb/s."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How measurements differ from the truth.

    Attributes:
        scatter: standard deviation of the logarithm of each measurement.
        disturbed: share of measurements that something else disturbs.
        left: of the bandwidth of those, from and to, evenly distributed.
    """

    scatter: float = 0.05
    disturbed: float = 0.01
    left: tuple[float, float] = (0.3, 0.9)


@dataclass
class SimulatedHosts:
    """Hosts, and what is planted among them.

    Attributes:
        slow_hosts: position -> share of the bandwidth that it has.
        slow_paths: (positions of the one side, of the other) -> share.
        lost: position -> the round, from 1, in which it ceases to answer.
    """

    num_hosts: int
    seed: int
    noise: Noise = field(default_factory=Noise)
    slow_hosts: dict[int, float] = field(default_factory=dict)
    slow_paths: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._truth = self._make_truth()
        self._round = 0

    def measure(self, chosen: Round) -> Measured:
        """What the hosts would report of a round."""
        self._round += 1
        first, second = chosen.pairs()
        bandwidth = self._truth[first, second] * self._draw_noise(len(first))
        gone = [host for host, when in self.lost.items() if when <= self._round]
        asked = {host for group in chosen.groups for host in group}
        stopped = [list(group) for group in chosen.groups if set(group) & set(gone)]
        for group in stopped:  # its members wait for each other: what they measured before is kept, the half of it
            unfinished = np.isin(first, group) & (self._random.random(len(first)) < 0.5)
            bandwidth[unfinished | np.isin(first, gone) | np.isin(second, gone)] = np.nan
        return Measured(first, second, bandwidth, [host for host in gone if host in asked])

    def _make_truth(self) -> Floats:
        speeds = np.full(self.num_hosts, GOOD)
        for host, share in self.slow_hosts.items():
            speeds[host] *= share
        truth = np.minimum(speeds[:, None], speeds[None, :])
        for (one, other), share in self.slow_paths.items():
            there = np.ix_(one, other)
            back = np.ix_(other, one)
            truth[there] = np.minimum(truth[there], GOOD * share)
            truth[back] = np.minimum(truth[back], GOOD * share)
        return truth

    def _draw_noise(self, num: int) -> Floats:
        noise = np.exp(self._random.normal(0, self.noise.scatter, num))
        disturbed = self._random.random(num) < self.noise.disturbed
        noise[disturbed] *= self._random.uniform(*self.noise.left, int(disturbed.sum()))
        return noise


def search_simulated(hosts: SimulatedHosts, *, max_partners: int | None = None, slow_below: float = 0.7) -> Findings:
    """Carry the search out on simulated hosts."""
    search = Search(hosts.num_hosts, slow_below=slow_below, max_partners=max_partners)
    while (chosen := search.next_round()) is not None:
        search.record(hosts.measure(chosen))
    return search.findings()


def named_right(findings: Findings, hosts: SimulatedHosts) -> bool:
    """Whether exactly what was planted was found."""
    return (
        [one.host for one in findings.hosts] == sorted(hosts.slow_hosts)
        and _sides((path.first, path.second) for path in findings.paths) == _sides(hosts.slow_paths)
        and findings.lost == sorted(hosts.lost)
    )


def _sides(paths: Iterable[tuple[Sequence[int], Sequence[int]]]) -> set[frozenset[tuple[int, ...]]]:
    return {frozenset((tuple(sorted(one)), tuple(sorted(other)))) for one, other in paths}
