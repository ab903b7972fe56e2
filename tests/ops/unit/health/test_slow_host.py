"""Which hosts meet in which round, and what is concluded, on simulated clusters."""

import random

import pytest

from glmforge_ops.health.slow_host import Findings, Search


def searched(
    num_hosts: int,
    slow_hosts: dict[int, float] | None = None,
    slow_paths: dict[tuple[int, int], float] | None = None,
    silent: tuple[int, ...] = (),
    once: tuple[tuple[int, int], ...] = (),
    noise: float = 0.0,
    seed: int = 0,
) -> Findings:
    """A search among hosts of 10 GB/s. Silent hosts do not report; the pairs of `once` are slow the first time only."""
    chance, search = random.Random(seed), Search(num_hosts)
    met: set[tuple[int, int]] = set()
    while (pairs := search.next_round()) is not None:
        hosts = [host for pair in pairs for host in pair]
        assert len(set(hosts)) == len(hosts), "a host is in two pairs"
        measured = {}
        for pair in pairs:
            value = min((slow_hosts or {}).get(host, 10.0) for host in pair)
            value = min(value, (slow_paths or {}).get(pair, 10.0))
            value = 1.0 if pair in once and pair not in met else value
            measured[pair] = 0.0 if set(pair) & set(silent) else value * (1 - noise * chance.random())
        met |= measured.keys()
        search.record(measured, [host for host in silent if host in hosts])
    if num_hosts <= 8 and not silent:
        assert len(met) == num_hosts * (num_hosts - 1) // 2
    return search.findings([f"n{host}" for host in range(num_hosts)])


@pytest.mark.parametrize("num_hosts", [2, 3, 7, 8, 9, 64, 1023])
def test_nothing_is_slow(num_hosts: int) -> None:
    findings = searched(num_hosts, noise=0.2)
    assert findings.is_clean
    assert findings.rounds <= (7 if num_hosts <= 8 else 3)


@pytest.mark.parametrize("num_hosts", [3, 8, 9, 64, 1023])
@pytest.mark.parametrize("seed", range(5))
def test_a_slow_host_is_named_and_nothing_else(num_hosts: int, seed: int) -> None:
    host = random.Random(seed).randrange(num_hosts)
    findings = searched(num_hosts, {host: 5.0}, noise=0.2, seed=seed)
    assert [one.hosts for one in findings.slow_hosts] == [(f"n{host}",)]
    assert (findings.slow_paths, findings.lost) == ([], [])
    assert findings.rounds <= (8 if num_hosts <= 8 else 4)


def test_slow_neighbours_are_both_named() -> None:
    findings = searched(16, {4: 5.0, 5: 4.0, 6: 5.0})
    assert [one.hosts[0] for one in findings.slow_hosts] == ["n4", "n5", "n6"]


def test_a_slow_path_between_fast_hosts() -> None:
    findings = searched(8, slow_paths={(2, 6): 1.0})
    assert [one.hosts for one in findings.slow_paths] == [("n2", "n6")]
    assert (findings.slow_hosts, findings.rounds) == ([], 8)


@pytest.mark.parametrize("num_hosts", [8, 16])
def test_pairs_that_were_slow_only_once_are_not_named(num_hosts: int) -> None:
    """Two of them share a host, so they cannot be measured again in the same round."""
    once = ((2, 3), (3, 4))
    findings = searched(num_hosts, once=once, slow_hosts={6: 5.0})
    assert [one.hosts for one in findings.slow_hosts] == [("n6",)]
    assert not findings.slow_paths


@pytest.mark.parametrize("num_hosts", [4, 8, 9, 32])
def test_a_silent_host_is_lost_and_its_partner_is_not_blamed(num_hosts: int) -> None:
    findings = searched(num_hosts, silent=(1,))
    assert findings.lost == ["n1"]
    assert (findings.slow_hosts, findings.slow_paths) == ([], [])


def test_two_hosts_are_only_slow_against_an_expectation() -> None:
    search = Search(2, expected_gbs=20.0)
    assert search.next_round() == [(0, 1)]
    search.record({(0, 1): 10.0})
    assert len(search.findings(["a", "b"]).slow_hosts) == 2
