"""What ranks report of a round, put together."""

import math

import pytest

from glmforge_ops.health.collectives.settings import SlowSettings
from glmforge_ops.health.collectives.slow.drive import Unit, put_together
from glmforge_ops.health.collectives.slow.exchange import Exchanged
from glmforge_ops.health.collectives.slow.report import findings_as_json, lines_of
from glmforge_ops.health.collectives.slow.rounds import Round, chosen_round
from glmforge_ops.health.collectives.slow.search import Search

UNITS = [Unit("a", [0, 1]), Unit("b", [2, 3]), Unit("c", [4, 5])]
ROUND = chosen_round("all", [(0, 1), (1, 2), (0, 2)], 3, most=9, repeats=1)  # each pair in an exchange of its own


def reports(**changed: Exchanged) -> dict[int, Exchanged]:
    """All is well at 10 GB/s, but for the ranks that are named: r3=..."""
    mine = {0: [10.0, None, 10.0], 1: [10.0, 10.0, None], 2: [None, 10.0, 10.0]}
    said = {rank: Exchanged(list(mine[rank // 2])) for rank in range(6)}
    return {rank: changed.get(f"r{rank}", one) for rank, one in said.items()}


def test_the_slowest_rank_of_a_pair_of_hosts_counts() -> None:
    measured = put_together(ROUND, UNITS, reports(r3=Exchanged([4.0, 10.0, None])))
    assert dict(zip(zip(measured.first, measured.second, strict=True), measured.bandwidth, strict=True)) == {
        (0, 1): 4.0,
        (1, 2): 10.0,
        (0, 2): 10.0,
    }
    assert measured.lost == []


def test_a_path_that_both_sides_give_up_carries_nothing() -> None:
    stopped = Exchanged([None, None, None], 0, "timed out")
    measured = put_together(ROUND, UNITS, reports(r1=stopped, r3=stopped))
    assert measured.bandwidth.tolist()[0] == 0.0
    assert [math.isnan(value) for value in measured.bandwidth[1:]] == [True, True]


def test_who_waits_for_one_that_stopped_elsewhere_does_not_accuse_it() -> None:
    """a and b fail with each other; c then waits for b in vain."""
    stopped, waited = Exchanged([None, None, None], 0, "timed out"), Exchanged([None, None, None], 1, "timed out")
    measured = put_together(ROUND, UNITS, reports(r1=stopped, r3=stopped, r5=waited))
    assert measured.bandwidth[0] == 0.0
    assert math.isnan(measured.bandwidth[1])


def test_a_host_of_which_a_rank_is_silent_is_lost() -> None:
    said = reports(r0=Exchanged([None, None, None], 0, "timed out"))
    del said[2]
    measured = put_together(ROUND, UNITS, said)
    assert measured.lost == [1]
    assert math.isnan(measured.bandwidth[0])


def test_two_hosts_that_cannot_connect_are_a_path_that_carries_nothing_more_than_two_are_not_known() -> None:
    pair = chosen_round("pair", [(0, 1)], 2, most=9, repeats=1)
    failed = {rank: Exchanged([], -1, "connectFullMesh") for rank in range(4)}
    assert put_together(pair, UNITS[:2], failed).bandwidth.tolist() == [0.0]
    failed = {rank: Exchanged([], -1, "connectFullMesh") for rank in range(6)}
    assert all(math.isnan(value) for value in put_together(ROUND, UNITS, failed).bandwidth)


def test_findings_in_words_and_as_json() -> None:
    search = Search(3)
    search.next_round()  # whatever it is, all three pairs are reported
    search.record(put_together(ROUND, UNITS, reports(r4=Exchanged([None, 1.0, 1.0]))))
    lines = lines_of(UNITS, search.findings(), SlowSettings())
    assert lines[0].startswith("slow: c reached 1 GB/s with its best partner, others reach")
    assert lines[-1] == "3 of 3 paths between hosts measured in 1 rounds, 1 exchanges one after the other"
    as_json = findings_as_json(UNITS, search.findings())
    assert as_json["slow_hosts"] == [{"host": "c", "gb_per_s": 1.0}]
    assert as_json["paths"] == 3


def test_what_was_not_measured_is_named() -> None:
    search = Search(3)
    while (chosen := search.next_round()) is not None:
        failed = {rank: Exchanged([], -1, "connectFullMesh") for rank in range(6)}
        search.record(put_together(chosen, UNITS, failed if len(chosen.groups[0]) > 2 else reports_of(chosen)))
    findings = search.findings()
    lines = lines_of(UNITS, findings, SlowSettings())
    assert lines[0].startswith("not measured: the path between a, b and c: the hosts could not connect")
    assert findings_as_json(UNITS, findings)["not_measured"] == [{"between": ["a", "b"], "and": ["c"]}]
    assert not findings.is_clean


def reports_of(chosen: Round) -> dict[int, Exchanged]:
    """All is well in any round."""
    return {
        rank: Exchanged([10.0 if partner >= 0 else None for partner in chosen.partners[:, number].tolist()])
        for number, unit in enumerate(UNITS)
        for rank in unit.ranks
    }


@pytest.mark.parametrize("name", ["evil\x1b[2J", "two\nlines"])
def test_names_of_hosts_steer_no_terminal(name: str) -> None:
    units = [UNITS[0], UNITS[1], Unit(name, [4, 5])]
    search = Search(3)
    search.next_round()
    search.record(put_together(ROUND, units, reports(r4=Exchanged([None, 1.0, 1.0]))))
    assert all(line.isprintable() for line in lines_of(units, search.findings(), SlowSettings()))
