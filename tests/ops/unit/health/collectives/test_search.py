"""Everything that can be slow among few hosts is found, and of what many hosts can have, a sample; with noise."""

import itertools

import numpy as np
import pytest

from glmforge_ops.health.collectives.slow.rounds import chosen_round, halves_round, num_levels
from glmforge_ops.health.collectives.slow.search import Findings, Measured, Search
from glmforge_ops.health.collectives.slow.simulate import Noise, SimulatedHosts, named_right, search_simulated

HALF = 0.5
PAIRS = list(itertools.combinations(range(8), 2))


def nothing(num_hosts: int) -> np.ndarray:
    return np.zeros((num_hosts, num_hosts), dtype=bool)


def found(num_hosts: int, seed: int = 0, **planted: object) -> tuple[Findings, bool]:
    hosts = SimulatedHosts(num_hosts=num_hosts, seed=seed, **planted)  # type: ignore[arg-type]
    findings = search_simulated(hosts)
    return findings, named_right(findings, hosts)


@pytest.mark.parametrize("num_hosts", [2, 3, 4, 5, 8, 13, 16, 33])
def test_every_two_hosts_meet_once_and_nobody_has_two_partners_at_a_time(num_hosts: int) -> None:
    met: list[tuple[int, int]] = []
    for level in range(1, num_levels(num_hosts) + 1):
        chosen = halves_round(level, num_hosts, nothing(num_hosts), None)
        first, second = chosen.pairs()
        met += zip(first.tolist(), second.tolist(), strict=True)
        for row in chosen.partners:
            busy = np.flatnonzero(row >= 0)
            assert (row[row[busy]] == busy).all(), "a partner has another partner"
        members = [host for group in chosen.groups for host in group]
        assert len(members) == len(set(members)), "groups share a host"
        in_group = {host: group for group in chosen.groups for host in group}
        assert all(in_group[one] == in_group[other] for one, other in met[-len(first) :])
    assert sorted(met) == list(itertools.combinations(range(num_hosts), 2))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("host", range(8))
def test_every_single_slow_host_of_8(host: int, seed: int) -> None:
    findings, right = found(8, seed, slow_hosts={host: HALF})
    assert right
    assert findings.num_rounds <= 6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pair", PAIRS)
def test_every_single_slow_path_of_8(pair: tuple[int, int], seed: int) -> None:
    findings, right = found(8, seed, slow_paths={((pair[0],), (pair[1],)): HALF})
    assert right
    assert findings.paths[0].confirmed
    assert findings.num_rounds <= 6


@pytest.mark.parametrize("pair", PAIRS)
def test_every_two_slow_hosts_of_8_are_both_named(pair: tuple[int, int]) -> None:
    findings, right = found(8, slow_hosts={pair[0]: HALF, pair[1]: 0.3})
    assert right
    assert findings.num_rounds <= 6


@pytest.mark.parametrize("two", list(itertools.combinations(PAIRS, 2))[::7])
def test_two_slow_paths_of_8(two: tuple[tuple[int, int], tuple[int, int]]) -> None:
    findings, _ = found(8, slow_paths={((a,), (b,)): HALF for a, b in two})
    pairs = {pair for path in findings.paths for pair in itertools.product(path.first, path.second)}
    assert pairs == set(two)  # two that lie side by side may be told as one
    assert not findings.hosts


@pytest.mark.parametrize("num_hosts", range(3, 13))
def test_any_number_of_hosts(num_hosts: int) -> None:
    for host in range(num_hosts):
        assert found(num_hosts, host, slow_hosts={host: HALF})[1]
    for one, other in itertools.combinations(range(num_hosts), 2) if num_hosts > 3 else []:
        assert found(num_hosts, one, slow_paths={((one,), (other,)): HALF})[1]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_found_where_nothing_is_slow(seed: int) -> None:
    findings, right = found(8, seed, noise=Noise(scatter=0.05, disturbed=0.05))
    assert right
    assert findings.is_clean
    assert (findings.num_measured, findings.num_paths) == (28, 28)


def test_half_of_the_hosts_may_be_slow() -> None:
    findings, right = found(8, slow_hosts=dict.fromkeys((0, 2, 4, 5), HALF))
    assert right
    assert findings.reference == pytest.approx(50, rel=0.1)


def test_what_lies_between_two_switches_is_one_finding() -> None:
    switches = (0, 1, 2, 3), (4, 5, 6, 7)
    findings, right = found(8, slow_paths={switches: 0.2})
    assert right
    assert [(path.first, path.second) for path in findings.paths] == [switches]
    assert found(16, slow_paths={((4, 5, 6, 7), (8, 9, 10, 11)): 0.2})[1]


def test_a_slow_path_is_seen_beside_a_slow_host() -> None:
    assert found(8, slow_hosts={1: HALF}, slow_paths={((2,), (5,)): 0.3})[1]


@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("host", range(8))
def test_a_host_that_ceases_to_answer_is_named_and_the_rest_goes_on(host: int, when: int) -> None:
    slow = (host + 3) % 8
    findings, right = found(8, lost={host: when}, slow_hosts={slow: HALF})
    assert right
    assert (findings.num_measured, findings.num_paths) == (21, 21)
    assert findings.num_rounds <= 6


def test_a_cut_path_is_told_from_a_lost_host() -> None:
    search = Search(4)
    while (chosen := search.next_round()) is not None:
        first, second = chosen.pairs()
        bandwidth = np.where((first == 1) & (second == 2), 0.0, 50.0)
        search.record(Measured(first, second, bandwidth))
    findings = search.findings()
    assert [(path.first, path.second, path.bandwidth) for path in findings.paths] == [((1,), (2,), 0.0)]
    assert not findings.hosts
    assert not findings.lost


def test_what_is_never_finished_is_not_taken_for_good() -> None:
    search = Search(4)
    while (chosen := search.next_round()) is not None:
        first, second = chosen.pairs()
        search.record(Measured(first, second, np.where((first == 0) & (second == 3), np.nan, 50.0)))
    findings = search.findings()
    assert (findings.num_measured, findings.num_paths) == (5, 6)
    assert [(path.first, path.second) for path in findings.unknown] == [((0,), (3,))]
    assert not findings.paths
    assert not findings.is_clean
    assert search._times_asked[0, 3] == 3


@pytest.mark.parametrize("partners", [None, 1])
def test_what_nobody_asked_for_is_not_unknown(partners: int | None) -> None:
    findings = search_simulated(SimulatedHosts(num_hosts=16, seed=1), max_partners=partners)
    assert findings.is_clean
    assert findings.unknown == []


def test_groups_that_cannot_connect_leave_their_paths_unknown() -> None:
    """Between 0 and 5 nothing goes: no group with both of them comes about."""
    search = Search(8)
    while (chosen := search.next_round()) is not None:
        first, second = chosen.pairs()
        apart = next((group for group in chosen.groups if {0, 5} <= set(group)), ())
        search.record(Measured(first, second, np.where(np.isin(first, apart), np.nan, 50.0)))
    findings = search.findings()
    assert [(path.first, path.second) for path in findings.unknown] == [((0, 1, 2, 3), (4, 5, 6, 7))]
    assert (findings.num_measured, findings.num_paths) == (12, 28)
    assert not findings.is_clean


@pytest.mark.parametrize("when", [1, 5, 10])
def test_a_host_that_is_lost_among_1024_costs_a_round_only_at_the_end(when: int) -> None:
    noise = Noise(scatter=0.10, disturbed=0.05)
    findings, right = found(1024, 1, noise=noise, lost={100: when})
    assert right
    assert findings.num_rounds <= (13 if when == 10 else 12)
    assert findings.num_measured == 1023 * 1022 // 2


def test_two_hosts_can_only_be_compared_with_what_is_expected() -> None:
    alone = Search(2)
    told = Search(2, expected=50.0)
    for search in (alone, told):
        while (chosen := search.next_round()) is not None:
            first, second = chosen.pairs()
            search.record(Measured(first, second, np.full(len(first), 10.0)))
    assert alone.findings().is_clean
    assert [(path.first, path.second) for path in told.findings().paths] == [((0,), (1,))]


def test_a_disturbance_is_gone_when_it_is_measured_again() -> None:
    search = Search(8)
    rounds = []
    while (chosen := search.next_round()) is not None:
        rounds.append(chosen)
        first, second = chosen.pairs()
        disturbed = (first == 2) & (second == 3) & (len(rounds) == 1)
        search.record(Measured(first, second, np.where(disturbed, 20.0, 50.0)))
    assert search.findings().is_clean
    assert [chosen.name for chosen in rounds][-1] == "suspects again"
    assert set(zip(*map(np.ndarray.tolist, rounds[-1].pairs()), strict=True)) == {(2, 3)}


def test_chosen_pairs_are_disjoint_in_each_exchange_and_in_groups_that_hold_together() -> None:
    pairs = [(0, 1), (1, 2), (0, 2), (5, 6), (5, 7)]
    chosen = chosen_round("again", pairs, 8, most=9, repeats=2)
    assert sorted(zip(*map(np.ndarray.tolist, chosen.pairs()), strict=True)) == sorted(pairs * 2)
    assert sorted(chosen.groups) == [(0, 1, 2), (5, 6, 7)]
    assert chosen.num_exchanges == 4
    limited = chosen_round("again", pairs, 8, most=1, repeats=1)
    assert sorted(zip(*map(np.ndarray.tolist, limited.pairs()), strict=True)) == [(0, 1), (5, 6)]


def test_one_partner_in_each_round_finds_slow_hosts_in_a_time_that_grows_with_the_logarithm() -> None:
    hosts = SimulatedHosts(num_hosts=64, seed=3, slow_hosts={17: HALF, 18: HALF})
    findings = search_simulated(hosts, max_partners=1)
    assert [one.host for one in findings.hosts] == [17, 18]
    assert findings.num_exchanges <= 6 + 9  # and three times three with witnesses
    assert findings.num_measured < findings.num_paths


@pytest.mark.parametrize(
    "planted",
    [
        {},
        {"slow_hosts": {700: HALF}},
        {"slow_hosts": {0: HALF, 1: HALF, 1023: 0.2}},
        {"slow_paths": {((3,), (900,)): HALF}},
    ],
    ids=["nothing", "one host", "three hosts", "one path"],
)
def test_1024_hosts(planted: dict[str, object]) -> None:
    findings, right = found(1024, 5, **planted)
    assert right
    assert findings.num_rounds <= 12
    assert findings.num_measured == 1024 * 1023 // 2
