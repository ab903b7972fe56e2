"""Find the host, or the path between two hosts, that all others wait for: hosts exchange data in pairs.

All pairs of a round measure at the same time. Up to 8 hosts meet each other once. Of more, each meets its two
neighbours in the order of ranks, and hosts that were slow with both are measured again with hosts that were not. A host
is as fast as it was with its best partner, since measurements scatter and other traffic only takes bandwidth away; a
pair that is slow while both hosts are fast with others is measured again, and is a slow path if it still is.

Rank 0 leads through the job's store, and each pair has a process group of its own, so a host that does not answer
delays its partner for a time limit and no other host. If rank 0's host is lost, the others end when the store does not
answer.
"""

import json
import logging
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.errors import ConfigError, HostError
from glmforge.observe.units import counted
from glmforge.runtime.launch import LaunchEnvironment

logger = logging.getLogger(__name__)

Pair = tuple[int, int]
EXCHANGE_BYTES = 8 << 20
SLOW_BELOW = 0.7
"""Share of the usual bandwidth below which something is slow."""
_ALL_PAIRS = 8
_ITERATIONS = 3
_LONG_S = 0.5
"""An exchange that takes this long is not repeated: its scatter is small."""
_POLL_S = 0.02
_MARGIN_S = 5.0


@dataclass(frozen=True)
class Slow:
    """A slow host, or the two hosts of a slow path, with the bandwidth of the best exchange in GB/s."""

    hosts: tuple[str, ...]
    gb_per_s: float


@dataclass(frozen=True)
class Findings:
    """The result of a search. `usual_gb_per_s`: the median of the hosts' best exchanges."""

    hosts: list[str]
    rounds: int
    usual_gb_per_s: float
    slow_hosts: list[Slow]
    slow_paths: list[Slow]
    lost: list[str]

    @property
    def is_clean(self) -> bool:
        return not (self.slow_hosts or self.slow_paths or self.lost)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For a terminal."""
        lines = [f"lost: {host} does not answer" for host in self.lost]
        lines += [f"slow host: {one.hosts[0]}, {one.gb_per_s:.3g} GB/s" for one in self.slow_hosts]
        lines += [f"slow path: {one.hosts[0]} - {one.hosts[1]}, {one.gb_per_s:.3g} GB/s" for one in self.slow_paths]
        usual = f"{len(self.hosts)} hosts, {self.rounds} rounds, usual bandwidth {self.usual_gb_per_s:.3g} GB/s"
        return [*lines, f"{usual}: {'nothing is slow' if self.is_clean else 'see above'}"]


class Search:
    """Which hosts meet in which round, and what follows. Knows no ranks and does no communication."""

    def __init__(self, num_hosts: int, slow_below: float = SLOW_BELOW, expected_gbs: float | None = None) -> None:
        self._num, self._slow_below, self._expected = num_hosts, slow_below, expected_gbs
        self._found: dict[Pair, float] = {}
        self._lost: set[int] = set()
        self._repeated: set[int | Pair] = set()
        self._rounds = 0
        self._plan = self._rounds_of_all()

    def next_round(self) -> list[Pair] | None:
        """Disjoint pairs to measure; None when the search is done."""
        pairs = next(self._plan, None) or self._slow_hosts_again() or self._slow_paths_again()
        self._rounds += pairs is not None
        return pairs

    def record(self, measured: dict[Pair, float], lost: Sequence[int] = ()) -> None:
        """GB/s of each pair of the round (0: the exchange failed), and hosts that did not report."""
        for pair, value in measured.items():
            self._found[pair] = max(value, self._found.get(pair, 0.0))
        self._lost |= set(lost)

    def findings(self, hosts: Sequence[str]) -> Findings:
        """By name."""
        usual, best, silent = self._usual(), self._best(), self._silent()
        slow = [Slow((hosts[host],), best[host]) for host in sorted(self._slow() - silent)]
        paths = [Slow((hosts[one], hosts[other]), self._found[one, other]) for one, other in self._slow_paths()]
        return Findings(list(hosts), self._rounds, usual, slow, paths, [hosts[host] for host in sorted(silent)])

    def _rounds_of_all(self) -> Iterator[list[Pair]]:
        """Every two hosts once, or each with its neighbours."""
        if self._num <= _ALL_PAIRS:
            circle = [*range(self._num), *([-1] if self._num % 2 else [])]
            for _ in range(len(circle) - 1):
                half = len(circle) // 2
                yield self._present(zip(circle[:half], reversed(circle[half:]), strict=True))
                circle = [circle[0], circle[-1], *circle[1:-1]]
            return
        yield self._present((one, one + 1) for one in range(0, self._num - 1, 2))
        yield self._present((one, (one + 1) % self._num) for one in range(1, self._num - self._num % 2, 2))
        if self._num % 2:
            yield self._present([(self._num - 1, 0)])

    def _present(self, pairs: Sequence[Pair] | Iterator[Pair]) -> list[Pair]:
        return [(min(pair), max(pair)) for pair in pairs if min(pair) >= 0 and not self._lost & set(pair)]

    def _slow_hosts_again(self) -> list[Pair] | None:
        """Hosts that were slow with all partners, once each with a host that was not."""
        slow = [host for host in self._slow() - self._lost if host not in self._repeated]
        fast = sorted(self._best().keys() - self._slow() - self._lost, reverse=True)
        self._repeated |= set(slow[: len(fast)])
        return [(min(pair), max(pair)) for pair in zip(slow, fast, strict=False)] or None

    def _slow_paths_again(self) -> list[Pair] | None:
        """Pairs that were slow although both hosts are fast, once each."""
        pairs: list[Pair] = []
        for pair in self._slow_paths():
            if pair not in self._repeated and not {host for other in pairs for host in other} & set(pair):
                pairs.append(pair)
        self._repeated |= set(pairs)
        return pairs or None

    def _slow_paths(self) -> list[Pair]:
        limit, bad = self._slow_below * self._usual(), self._slow() | self._silent()
        return [pair for pair, value in self._found.items() if value < limit and not bad & set(pair)]

    def _slow(self) -> set[int]:
        limit = self._slow_below * self._usual()
        return {host for host, value in self._best().items() if value < limit}

    def _silent(self) -> set[int]:
        return self._lost | {host for host, value in self._best().items() if value == 0.0}

    def _best(self) -> dict[int, float]:
        best: dict[int, float] = {}
        for pair, value in self._found.items():
            for host in pair:
                best[host] = max(value, best.get(host, 0.0))
        return best

    def _usual(self) -> float:
        if self._expected is not None:
            return self._expected
        values = [value for value in self._best().values() if value]
        return statistics.median(values) if values else 0.0


def find_slow(
    launch: LaunchEnvironment,
    store: dist.Store,
    device: torch.device,
    *,
    timeout_s: float,
    expected_gbs: float | None = None,
    num_bytes: int = EXCHANGE_BYTES,
    slow_below: float = SLOW_BELOW,
    done: Callable[[str], None] = lambda line: None,
) -> tuple[Findings | None, bool]:
    """Search with all ranks of the job, which call this together; `done` is passed a line per round on rank 0.

    Returns the findings, on rank 0 alone, and whether an exchange of this rank failed: then the teardown of its process
    groups may hang. Raises `ConfigError` if there are no two hosts, and `HostError` if rank 0 is lost.
    """
    mine = _Rank(launch, dist.PrefixStore("find-slow", store), device, timeout_s, num_bytes)
    number, lost = 0, HostError("rank 0, which leads the search, cannot be reached from this host: see its output")
    try:
        if launch.rank != 0:
            while _within(7 * timeout_s + 3 * _MARGIN_S, partial(mine.take_part, number), lost):
                number += 1
            return None, mine.broken
        search = Search(len(mine.hosts), slow_below, expected_gbs)
        while (pairs := search.next_round()) is not None:
            start = time.perf_counter()
            mine.store.set(f"round/{number}", json.dumps(pairs))
            mine.take_part(number)
            search.record(*mine.collect(number, pairs))
            number += 1
            done(f"round {number}: {counted(len(pairs), 'pair')}, {time.perf_counter() - start:.1f} s")
        findings = search.findings([name for name, _ in mine.hosts])
        mine.dismiss(number, findings.lost)
    except dist.DistError as error:
        raise lost from error
    return findings, mine.broken


def _within(limit_s: float, call: Callable[[], bool], late: Exception) -> bool:
    """The result of a call in a thread: a client that is cut off from the store waits as long as TCP tries."""
    results: SimpleQueue[bool | Exception] = SimpleQueue()

    def run() -> None:
        try:
            results.put(call())
        except Exception as error:  # noqa: BLE001 - raised again by the main thread
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = results.get(timeout=limit_s)
    except Empty:
        raise late from None
    if isinstance(result, Exception):
        raise result
    return result


class _Rank:
    """One rank's part in the rounds."""

    def __init__(
        self, launch: LaunchEnvironment, store: dist.Store, device: torch.device, timeout_s: float, num_bytes: int
    ) -> None:
        self.store, self.broken = store, False
        self._launch, self._device, self._timeout_s = launch, device, timeout_s
        self._given = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._got = torch.zeros_like(self._given)
        self.hosts = self._meet()
        self._host = next(at for at, (_, ranks) in enumerate(self.hosts) if launch.rank in ranks)
        self._place = self.hosts[self._host][1].index(launch.rank)

    def _meet(self) -> list[tuple[str, list[int]]]:
        """Hosts with their ranks, in the order of their first ranks."""
        self.store.set(f"at/{self._launch.rank}", socket.gethostname())
        ranks: dict[str, list[int]] = {}
        for rank in range(self._launch.world_size):
            ranks.setdefault(self.store.get(f"at/{rank}").decode(), []).append(rank)
        if len(ranks) < 2:
            raise ConfigError(f"all {self._launch.world_size} ranks are on {next(iter(ranks))}: use two hosts or more")
        if len({len(each) for each in ranks.values()}) > 1:
            counts = ", ".join(f"{host} {len(each)}" for host, each in ranks.items())
            raise ConfigError(f"hosts have different numbers of ranks ({counts}): start as many on each host")
        return list(ranks.items())

    def take_part(self, number: int) -> bool:
        """Measure in a round and report; False after the last one."""
        self.store.wait([f"round/{number}"], timedelta(seconds=6 * self._timeout_s + 2 * _MARGIN_S))
        pairs: list[Pair] | None = json.loads(self.store.get(f"round/{number}"))
        if pairs is None:
            self.store.add("dismissed", 1)
            return False
        partner = next((sum(pair) - self._host for pair in pairs if self._host in pair), None)
        try:
            group = self._make_groups(pairs)
            value = 0.0 if partner is None else self._bandwidth(self.hosts[partner][1][self._place], group)
        except RuntimeError as error:  # gloo's and NCCL's
            self.broken, value = True, 0.0
            logger.debug("rank %d, round %d: %s", self._launch.rank, number, error)
        if partner is not None:
            self.store.set(f"report/{number}/{self._launch.rank}", json.dumps(value))
            self.store.add(f"reported/{number}", 1)
        return True

    def _make_groups(self, pairs: list[Pair]) -> dist.ProcessGroup | None:
        """This rank's group of two. All ranks make all groups, in one order; one that cannot connect is made last."""
        timeout, mine, failure = timedelta(seconds=self._timeout_s), None, None
        for one, other in pairs:
            for ranks in zip(self.hosts[one][1], self.hosts[other][1], strict=True):
                try:
                    group = dist.new_group(list(ranks), timeout=timeout, group_desc="find-slow")
                except RuntimeError as error:
                    failure = error
                    continue
                mine = group if self._launch.rank in ranks else mine
        if failure is not None:
            raise failure
        return mine

    def _bandwidth(self, partner: int, group: dist.ProcessGroup | None) -> float:
        """GB/s of the fastest exchange; the first one, which may have to connect, does not count."""
        word, answer = torch.zeros(1, device=self._device), torch.zeros(1, device=self._device)
        self._exchange(partner, group, word, answer)  # the clock starts when both are there
        start = time.perf_counter()
        self._exchange(partner, group, self._given, self._got)
        word.fill_(time.perf_counter() - start)
        self._exchange(partner, group, word, answer)
        times = []
        for _ in range(1 if max(word.item(), answer.item()) > _LONG_S else _ITERATIONS):
            start = time.perf_counter()
            self._exchange(partner, group, self._given, self._got)
            times.append(time.perf_counter() - start)
        return self._given.numel() / max(min(times), 1e-9) / 1e9

    def _exchange(self, partner: int, group: dist.ProcessGroup | None, given: Tensor, got: Tensor) -> None:
        """Returns when both directions are done. Raises RuntimeError after the time limit."""
        sent, received = dist.P2POp(dist.isend, given, partner, group), dist.P2POp(dist.irecv, got, partner, group)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()
        if self._device.type == "cuda":
            until, event = time.monotonic() + self._timeout_s, torch.cuda.current_stream(self._device).record_event()
            while not event.query():
                if time.monotonic() > until:
                    raise RuntimeError(f"no answer within {self._timeout_s:g} s")
                time.sleep(_POLL_S / 40)

    def collect(self, number: int, pairs: list[Pair]) -> tuple[dict[Pair, float], list[int]]:
        """On rank 0: GB/s per pair, the least of its ranks', and hosts of which a rank has not reported."""
        asked = {rank: host for pair in pairs for host in pair for rank in self.hosts[host][1]}
        self._await(f"reported/{number}", len(asked), 5 * self._timeout_s + _MARGIN_S)
        keys = {rank: f"report/{number}/{rank}" for rank in asked}
        said = {rank: json.loads(self.store.get(key)) for rank, key in keys.items() if self.store.check([key])}
        measured = {
            (one, other): min(said.get(rank, 0.0) for host in (one, other) for rank in self.hosts[host][1])
            for one, other in pairs
        }
        return measured, sorted({host for rank, host in asked.items() if rank not in said})

    def dismiss(self, number: int, lost: list[str]) -> None:
        """On rank 0: end the search, and keep the store until the others have heard."""
        self.store.set(f"round/{number}", json.dumps(None))
        self._await("dismissed", sum(len(ranks) for name, ranks in self.hosts if name not in lost) - 1, _MARGIN_S)

    def _await(self, counter: str, count: int, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while self.store.add(counter, 0) < count and time.monotonic() < until:
            time.sleep(_POLL_S)
