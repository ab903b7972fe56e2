"""The search: which round is measured next, and what is known afterwards. It only thinks; who measures is another.

1. Every two hosts once, in log2(N) rounds (`glmforge_ops.health.collectives.slow.rounds`).
2. Suspects again, three times each, in one round: slow pairs, and slow hosts with good partners. What was a disturbance
   is gone then. Only where there were so many suspects that some would be disturbed three times more, what is left of
   them is measured in another round.

8 hosts need 3 + 1 rounds, 1,024 need 10 + 1 or 10 + 2. Where a host is lost on the way, its group does not finish: what
that lacks is measured again without it, in the next round or with the suspects, `_TRIES` times at most. What is not
measured then, as where a group cannot connect, is named: nothing is known of it.

What log2(N) rounds are, and what they are not. A host's speed shows in any exchange, so that with one exchange in each
round (`max_partners=1`) all slow hosts and slow paths between neighbouring blocks are found in a time that grows with
log2(N). The path between two hosts shows in no exchange but their own, as long as it has capacity for what else goes
over it: in a collective of many hosts that is a small part of each host's traffic, and a path at half speed delays
nothing. Whoever wants to know of all N (N - 1) / 2 paths has to send that many messages, N - 1 from each host one after
the other. So the rounds' number grows with log2(N), the exchanges in them to N - 1; seconds, at some milliseconds each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from glmforge_ops.health.collectives.slow.explain import (
    Floats,
    SlowHost,
    SlowPath,
    host_speeds,
    slow_hosts,
    slow_pairs,
    slow_paths,
    typical,
    unknown_paths,
)
from glmforge_ops.health.collectives.slow.rounds import Pairs, Round, chosen_round, halves_round, num_levels

_TRIES = 3
"""To measure a pair."""
_TRIES_OF_SUSPECTS = 2
_REPEATS = 3
"""Measurements of a suspect."""
_WITNESSES = 3
"""Good partners with whom a suspected host is measured again."""
_MOST_EXCHANGES = 128
"""Of a host in the round of suspects, each of which is repeated. Under much noise a twentieth of a host's paths are
suspected: who is left out here has not been measured often enough in the end."""
_BY_CHANCE = 0.01
"""False findings that chance may be expected to leave after one round of suspects; if it is more, there is another."""


class Measured(NamedTuple):
    """What a round gave.

    Attributes:
        first, second: positions of the two hosts of each exchange.
        bandwidth: GB/s in one direction; NaN if the exchange was not finished; 0 if it was given up by both.
        lost: hosts that did not answer at all.
    """

    first: npt.NDArray[np.integer]
    second: npt.NDArray[np.integer]
    bandwidth: Floats
    lost: Sequence[int] = ()


class Findings(NamedTuple):
    """What the search found; hosts are positions, bandwidths GB/s in one direction.

    Attributes:
        hosts: slow hosts.
        paths: slow paths, confirmed ones first.
        unknown: paths of which a measurement was tried and never finished; their bandwidth means nothing.
        lost: hosts that did not answer.
        reference: what a pair of good hosts reaches.
        num_measured, num_paths: paths between two hosts that answered: measured, and all.
        num_rounds: that it took.
        num_exchanges: that followed one another.
    """

    hosts: list[SlowHost]
    paths: list[SlowPath]
    unknown: list[SlowPath]
    lost: list[int]
    reference: float
    num_measured: int
    num_paths: int
    num_rounds: int
    num_exchanges: int

    @property
    def is_clean(self) -> bool:
        """Nothing slow, nobody lost, and no path that could be measured and was not."""
        return not (self.hosts or self.paths or self.lost or self.unknown)


class Search:
    """Ask `next_round`, measure it, `record` it, until there is none; then `findings`.

    Args:
        num_hosts: at least 2; with 2 there is one path and nothing to compare it with but `expected`.
        slow_below: share of the reference below which a host or a path is slow.
        expected: GB/s that a pair has to reach; None compares the hosts with each other.
        max_partners: of a host in a round; None is all.
    """

    def __init__(
        self,
        num_hosts: int,
        *,
        slow_below: float = 0.7,
        expected: float | None = None,
        max_partners: int | None = None,
    ) -> None:
        self.num_hosts, self.slow_below = num_hosts, slow_below
        self._expected, self._max_partners = expected, max_partners
        self._best: Floats = np.full((num_hosts, num_hosts), np.nan)
        self._times_asked = np.zeros((num_hosts, num_hosts), dtype=np.int32)
        self._times_again = np.zeros((num_hosts, num_hosts), dtype=np.int32)
        self._suspected: Pairs = np.zeros((num_hosts, num_hosts), dtype=np.bool_)
        self._times_needed = 1
        self._lost: set[int] = set()
        self._level, self._tries_left = 1, _TRIES_OF_SUSPECTS
        self._num_rounds = self._num_exchanges = 0
        self._reference = float("nan")

    @property
    def num_expected_rounds(self) -> int:
        """If nobody is lost."""
        return num_levels(self.num_hosts) + 1

    def next_round(self) -> Round | None:
        """The round to be measured now; None if the search is over."""
        unfinished = self._unfinished()
        while self._level <= num_levels(self.num_hosts):
            chosen = halves_round(self._level, self.num_hosts, self._not_again(), self._max_partners, unfinished)
            self._level += 1
            if chosen.groups:
                return self._begin(chosen)
        if not unfinished.any():  # else what these will tell may be suspected, too
            self._tries_left -= 1
        if self._tries_left >= 0:
            chosen = self._suspects(unfinished)
            if chosen.groups:
                return self._begin(chosen)
        return None

    def record(self, measured: Measured) -> None:
        """Take in what the round that was asked for last gave."""
        self._lost |= set(map(int, measured.lost))
        first, second = np.minimum(measured.first, measured.second), np.maximum(measured.first, measured.second)
        known = np.isfinite(measured.bandwidth)
        first, second, bandwidth = first[known], second[known], measured.bandwidth[known]
        again = np.zeros_like(self._suspected)
        again[first, second] = again[second, first] = True
        self._times_again += again & self._suspected
        upper = np.where(np.isfinite(self._best), self._best, -np.inf)
        np.maximum.at(upper, (first, second), bandwidth)
        upper = np.maximum(upper, upper.T)
        self._best = np.where(np.isfinite(upper), upper, np.nan)

    def findings(self) -> Findings:
        """What is known. Hosts that were lost are in no other finding."""
        best, reference = self._of_the_living(), self._get_reference()
        slow = slow_pairs(best, reference, self.slow_below)
        paths = slow_paths(best, slow, self._times_again > 0)
        living = self.num_hosts - len(self._lost)
        return Findings(
            hosts=slow_hosts(best, reference, self.slow_below),
            paths=sorted(paths, key=lambda path: (not path.confirmed, path.bandwidth)),
            unknown=unknown_paths((self._times_asked > 0) & ~self._not_again()),
            lost=sorted(self._lost),
            reference=reference,
            num_measured=int(np.isfinite(best).sum()) // 2,
            num_paths=living * (living - 1) // 2,
            num_rounds=self._num_rounds,
            num_exchanges=self._num_exchanges,
        )

    def _begin(self, chosen: Round) -> Round:
        first, second = chosen.pairs()
        asked = np.zeros_like(self._suspected)
        asked[first, second] = asked[second, first] = True
        self._times_asked += asked
        self._num_rounds += 1
        self._num_exchanges += chosen.num_exchanges
        return chosen

    def _not_again(self) -> npt.NDArray[np.bool_]:
        """[host, host]: pairs that were measured, or have a side that does not answer."""
        done = np.isfinite(self._best)
        gone = list(self._lost)
        done[gone, :] = done[:, gone] = True
        return done

    def _unfinished(self) -> Pairs:
        """[host, host]: pairs that were asked for and have not been measured, and may be asked for again."""
        return (self._times_asked > 0) & (self._times_asked < _TRIES) & ~self._not_again()

    def _suspects(self, unfinished: Pairs) -> Round:
        """Slow hosts and slow paths that have not been measured again yet, the slowest first; and what is unfinished.
        Of a path between two sets of hosts each host is measured once."""
        best, reference = self._of_the_living(), self._get_reference()
        slow = slow_pairs(best, reference, self.slow_below)
        enough = self._times_again >= self._times_needed
        paths = [path for path in slow_paths(best, slow, enough) if path.bandwidth > 0 and not path.confirmed]
        pairs: list[tuple[int, int]] = []
        for path in sorted(paths, key=lambda path: path.bandwidth):
            pairs += [pair for pair in zip(path.first, path.second, strict=False) if slow[pair]]
        suspected = len(pairs) / max(1, int(np.isfinite(best).sum()) // 2)
        if not self._times_again.any() and len(pairs) * suspected**_REPEATS > _BY_CHANCE:
            self._times_needed = 2
        chosen = dict.fromkeys([*self._with_witnesses(best, reference), *pairs])
        self._suspected[:] = False
        for first, second in chosen:
            self._suspected[first, second] = self._suspected[second, first] = True
        name = "suspects again" if chosen else "what was not finished"
        return chosen_round(name, chosen, self.num_hosts, _MOST_EXCHANGES, _REPEATS, unfinished)

    def _with_witnesses(self, best: Floats, reference: float) -> list[tuple[int, int]]:
        """Slow hosts with good partners, different ones as far as there are enough."""
        suspects = [one.host for one in slow_hosts(best, reference, self.slow_below)]
        speeds = host_speeds(best)
        good = [host for host in range(self.num_hosts) if speeds[host] >= self.slow_below * reference]
        if not good:
            return []
        pairs = [
            (suspect, good[(place + turn * len(suspects)) % len(good)])
            for turn in range(min(_WITNESSES, len(good)))
            for place, suspect in enumerate(suspects)
        ]
        return [(min(pair), max(pair)) for pair in pairs if not self._times_again[pair]]

    def _of_the_living(self) -> Floats:
        best = self._best.copy()
        gone = list(self._lost)
        best[gone, :] = best[:, gone] = np.nan
        return best

    def _get_reference(self) -> float:
        """What good pairs reach; as it was when every pair had been measured, so that suspects stay the same."""
        if self._expected is not None:
            return self._expected
        if np.isnan(self._reference):
            self._reference = typical(self._of_the_living())
        return self._reference
