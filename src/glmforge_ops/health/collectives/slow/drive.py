"""The search with real ranks: rank 0 thinks (`Search`), all measure, and they talk through the job's store.

Each round has a process group for each of its groups of hosts (and, of hosts with several ranks, for the first ranks of
all its hosts, for the second ones, ...: ranks that share a place on their hosts usually share a switch). All groups
measure at the same time. What is told and asked goes through the store, never through a collective of all ranks: a
host that stops answering delays the exchange it is in, and with it its group, for a time limit; all others go on.

* A rank whose exchange fails reports so, and leaves the rest of the round. Its group is not used again: a time limit
  breaks gloo's connections and NCCL's communicators.
* Both sides of an exchange say that just this one failed: it is the path between them that carries nothing.
* A host of which a rank has not reported, while nobody else has made progress for twice the time limit, is lost.

Groups are made by `new_group` on all ranks in the same order, which talks to members only. (With
`use_local_synchronization` torch 2.13 names a group by how many groups the process has, which differs among ranks.)
"""

import json
import logging
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from glmforge.errors import ConfigError
from glmforge.runtime.launch import LaunchEnvironment
from glmforge_ops.health.collectives.settings import SlowSettings
from glmforge_ops.health.collectives.slow.bounded_store import BoundedStore
from glmforge_ops.health.collectives.slow.exchange import Exchanged, exchange_all
from glmforge_ops.health.collectives.slow.rounds import Round
from glmforge_ops.health.collectives.slow.search import Findings, Measured, Search

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_TELL_EVERY_S = 1.0
_FAREWELL_S = 5.0


class Unit(NamedTuple):
    """What is measured as one: a host with its ranks in the order of their places there, or a single rank."""

    name: str
    ranks: list[int]


class RoundDone(NamedTuple):
    """A round as it is told to the user."""

    number: int
    expected: int
    chosen: Round
    measured: Measured
    seconds: float


class Outcome(NamedTuple):
    """The search's end. `findings` has positions in `units`; on ranks other than 0 it is None."""

    units: list[Unit]
    findings: Findings | None
    broken: bool
    """Whether this rank has a process group in which something failed."""


def find_slow(
    settings: SlowSettings,
    launch: LaunchEnvironment,
    store: dist.Store,
    device: torch.device,
    done: Callable[[RoundDone], None] = lambda one: None,
) -> Outcome:
    """Search with the ranks of the process group; all call this together, with the job's `store`.

    `done` is called on rank 0 after each round. Raises `ConfigError` if there are no two hosts, and `HostError` if
    rank 0 is lost.
    """
    bounded = BoundedStore(dist.PrefixStore("find-slow", store), settings.timeout_s + _FAREWELL_S)
    units = _meet(settings, launch, bounded)
    rank = _Rank(settings, launch, bounded, device, units)
    if launch.rank != 0:
        number = 0
        while rank.take_part(number):
            number += 1
        return Outcome(units, None, rank.broken)
    search = Search(
        len(units),
        slow_below=settings.slow_below,
        expected=settings.expected_gbs,
        max_partners=settings.max_partners,
    )
    number = 0
    while (chosen := search.next_round()) is not None:
        start = time.perf_counter()
        rank.announce(number, chosen)
        rank.take_part(number)
        measured = rank.collect(number, chosen)
        search.record(measured)
        number += 1
        expected = max(number, search.num_expected_rounds)
        done(RoundDone(number, expected, chosen, measured, time.perf_counter() - start))
    rank.dismiss(number, search.findings().lost)
    return Outcome(units, search.findings(), rank.broken)


def _meet(settings: SlowSettings, launch: LaunchEnvironment, store: BoundedStore) -> list[Unit]:
    """The hosts of the job, in the order of their first ranks; the same on all ranks."""
    store.set(f"at/{launch.rank}", json.dumps([socket.gethostname(), launch.local_rank]))
    if launch.rank == 0:
        said = [json.loads(store.get(f"at/{rank}")) for rank in range(launch.world_size)]
        store.set("units", json.dumps(_units(settings.unit, said)))
    units = [Unit(name, ranks) for name, ranks in json.loads(store.get("units"))]
    if len(units) < 2:
        raise ConfigError(
            f"all {launch.world_size} ranks are on {units[0].name}: start ranks on several hosts, or compare the ranks "
            "of this one with --unit rank"
        )
    counts = {len(unit.ranks) for unit in units}
    if len(counts) > 1:
        few, many = (min(units, key=lambda unit: len(unit.ranks)), max(units, key=lambda unit: len(unit.ranks)))
        raise ConfigError(
            f"{few.name} has {len(few.ranks)} ranks, {many.name} has {len(many.ranks)}: start as many on each host"
        )
    return units


def _units(unit: str, said: list[tuple[str, int]]) -> list[Unit]:
    if unit == "rank":
        return [Unit(f"rank {rank} ({host})", [rank]) for rank, (host, _) in enumerate(said)]
    places: dict[str, list[tuple[int, int]]] = {}
    for rank, (host, local_rank) in enumerate(said):
        places.setdefault(host, []).append((local_rank, rank))
    return [Unit(host, [rank for _, rank in sorted(found)]) for host, found in places.items()]


class _Rank:
    """One rank's part in the rounds."""

    def __init__(
        self,
        settings: SlowSettings,
        launch: LaunchEnvironment,
        store: BoundedStore,
        device: torch.device,
        units: list[Unit],
    ) -> None:
        self._settings, self._launch, self._store, self._device = settings, launch, store, device
        self._units = units
        self._mine = next(number for number, unit in enumerate(units) if launch.rank in unit.ranks)
        self._place = units[self._mine].ranks.index(launch.rank)
        self._kept: list[dist.ProcessGroup] = []
        self._last_told = 0.0
        self.broken = False

    def announce(self, number: int, chosen: Round) -> None:
        """Of rank 0: tell all what is measured."""
        for unit in {unit for group in chosen.groups for unit in group}:
            self._store.set(f"partners/{number}/{unit}", json.dumps(chosen.partners[:, unit].tolist()))
        self._store.set(f"round/{number}", json.dumps(chosen.groups))

    def dismiss(self, number: int, lost: list[int]) -> None:
        """Of rank 0: tell all that it is over, and keep the store until they have heard."""
        self._store.set(f"round/{number}", json.dumps(None))
        others = self._launch.world_size - 1 - sum(len(self._units[unit].ranks) for unit in lost)
        until = time.monotonic() + _FAREWELL_S
        while self._store.add("dismissed", 0) < others and time.monotonic() < until:
            time.sleep(_POLL_S)

    def take_part(self, number: int) -> bool:
        """Measure in a round and report; False if there is none any more."""
        while not self._store.check([f"round/{number}"]):
            time.sleep(_POLL_S * (1 + self._launch.world_size / 64))  # not too many questions at a time
        groups: list[list[int]] | None = json.loads(self._store.get(f"round/{number}"))
        if groups is None:
            self._store.add("dismissed", 1)
            return False
        exchanged = self._measure(number, groups)
        if exchanged is not None:
            if exchanged.failed is not None:
                self.broken = True
                logger.debug("rank %d: exchange %d failed: %s", self._launch.rank, exchanged.failed, exchanged.why)
            self._store.set(f"report/{number}/{self._launch.rank}", json.dumps(exchanged))
            self._store.add(f"reported/{number}", 1)
        return True

    def _measure(self, number: int, groups: list[list[int]]) -> Exchanged | None:
        """What this rank has to report; None if its host has nothing to do."""
        mine = next((group for group in groups if self._mine in group), None)
        try:
            process_group = self._make_groups(groups)
        except RuntimeError as error:  # of gloo, whose group could not connect
            return Exchanged([], -1, " ".join(str(error).split())[:300])
        if mine is None:
            return None
        assert process_group is not None
        partners: list[int] = json.loads(self._store.get(f"partners/{number}/{self._mine}"))
        return exchange_all(
            [self._units[unit].ranks[self._place] if unit >= 0 else None for unit in partners],
            process_group,
            self._device,
            num_bytes=self._settings.exchange_bytes,
            iterations=self._settings.iterations,
            timeout_s=self._settings.timeout_s,
            progress=lambda: self._tell_progress(number),
        )

    def _make_groups(self, groups: list[list[int]]) -> dist.ProcessGroup | None:
        """This rank's process group of the round, made last: a group that cannot connect does not keep this rank from
        counting the others."""
        timeout = timedelta(seconds=self._settings.timeout_s)
        lists = [
            [self._units[unit].ranks[place] for unit in group]
            for place in range(len(self._units[0].ranks))
            for group in groups
        ]
        found: dist.ProcessGroup | None = None
        failure: RuntimeError | None = None
        for ranks in lists:
            try:
                made = dist.new_group(ranks, timeout=timeout, group_desc="find-slow")
            except RuntimeError as error:
                failure = error
                continue
            if self._launch.rank in ranks:
                found = made
                self._kept.append(made)
        if failure is not None:
            raise failure
        return found

    def _tell_progress(self, number: int) -> None:
        if time.monotonic() - self._last_told > _TELL_EVERY_S:
            self._last_told = time.monotonic()
            self._store.add(f"progress/{number}", 1)

    def collect(self, number: int, chosen: Round) -> Measured:
        """Of rank 0: what all report, as far as they do."""
        asked = [rank for group in chosen.groups for unit in group for rank in self._units[unit].ranks]
        self._wait_for_reports(number, len(asked))
        reports: dict[int, Exchanged] = {}
        for rank in asked:
            if self._store.check([f"report/{number}/{rank}"]):
                reports[rank] = Exchanged(*json.loads(self._store.get(f"report/{number}/{rank}")))
        return put_together(chosen, self._units, reports)

    def _wait_for_reports(self, number: int, expected: int) -> None:
        """Until all have reported, or nothing has happened for longer than any measurement may take."""
        limit_s = 2 * self._settings.timeout_s + _FAREWELL_S
        seen, since = (-1, -1), time.monotonic()
        while True:
            now = (self._store.add(f"reported/{number}", 0), self._store.add(f"progress/{number}", 0))
            if now[0] >= expected:
                return
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > limit_s:
                return
            time.sleep(_POLL_S)


def put_together(chosen: Round, units: list[Unit], reports: dict[int, Exchanged]) -> Measured:
    """The bandwidth of each exchange of two hosts: the least that any of their ranks received.

    Args:
        reports: rank -> what it reported; who has not is missing.
    """
    asked = [unit for group in chosen.groups for unit in group]
    lost = sorted(unit for unit in asked if any(rank not in reports for rank in units[unit].ranks))
    exchanges, first = np.nonzero(chosen.partners > np.arange(chosen.partners.shape[1]))
    second = chosen.partners[exchanges, first]
    bandwidth = np.array(
        [
            _of_exchange(exchange, units[one], units[other], reports, only_two=_are_a_group(one, other, chosen))
            for exchange, one, other in zip(exchanges.tolist(), first.tolist(), second.tolist(), strict=True)
        ],
        dtype=np.float64,
    )
    return Measured(first, second, bandwidth, lost)


def _of_exchange(exchange: int, one: Unit, other: Unit, reports: dict[int, Exchanged], *, only_two: bool) -> float:
    """GB/s; NaN if it did not come to it, 0 if both sides gave it up."""
    least = np.inf
    for ranks in zip(one.ranks, other.ranks, strict=True):
        sides = [reports.get(rank) for rank in ranks]
        failed = [side.failed for side in sides if side is not None]
        if failed == [exchange, exchange] or (only_two and failed == [-1, -1]):
            return 0.0
        for side in sides:
            value = side.bandwidth[exchange] if side is not None and exchange < len(side.bandwidth) else None
            least = min(least, value) if value is not None else np.nan
    return float(least)


def _are_a_group(one: int, other: int, chosen: Round) -> bool:
    return len(chosen.groups[0]) == 2 and any(set(group) == {one, other} for group in chosen.groups)
