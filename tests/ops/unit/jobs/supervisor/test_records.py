"""What a supervisor writes down and reads again: the right attempts, nodes and times, and no disk that stops it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.launch import SupervisorConfig
from glmforge.errors import HostError
from glmforge.observe.job_records import Cause, Verdict, utc_now
from glmforge_ops.jobs.supervisor.nodes import Ledger, Node, Out
from glmforge_ops.jobs.supervisor.records import Checker, Records
from helpers.fake_starter import FakeAllocation
from helpers.made_jobs import at, made_attempt, made_job


@dataclass
class Allocation(FakeAllocation):
    broken: bool = False
    asked: list[str] = field(default_factory=list)

    def drain(self, node: str, reason: str | None) -> None:
        self.asked.append(f"{'undrain' if reason is None else 'drain'} {node}")
        if self.broken:
            raise HostError("scontrol: no controller")


def records_of(root: Path, *, checker: Checker | None = None, broken: bool = False, **config: Any) -> Records:
    return Records(made_job(root), SupervisorConfig(**config), Allocation(("a", "b"), broken=broken), checker)


def said(records: Records, name: str) -> list[dict[str, Any]]:
    return [event for event in records.job.read_events() if event["event"] == name]


def test_history_begins_behind_the_last_time_that_it_was_settled(tmp_path: Path) -> None:
    records = records_of(tmp_path)
    for number in range(1, 6):
        made_attempt(records.job, number, cause=Cause.CODE)
    assert len(records.history()) == 5
    records.say("decided", "", do="stop", attempt=3)
    records.say("decided", "", do="done", attempt=2)
    records.say("decided", "", do="restart", attempt=5)
    assert [attempt.number for attempt in records.history()] == [4, 5]


def out(hours: float, *, drained: bool = False) -> Node:
    return Node(out=Out(since=utc_now() - timedelta(hours=hours), reason="broken", drained=drained))


def test_nodes_whose_time_is_over_come_back_if_they_pass_a_check(tmp_path: Path) -> None:
    records = records_of(
        tmp_path, checker=lambda nodes: {"b": "Xid 79"} if "b" in nodes else {}, node_back_after_s=3600
    )
    Ledger(nodes={"a": out(2, drained=True), "b": out(2), "c": out(0.5), "d": out(3)}).write(records.job.nodes)
    ledger = records.ledger()
    assert set(ledger.out()) == {"b", "c"}
    assert ledger.out()["b"].reason == "a check fails: Xid 79"
    assert utc_now() - ledger.out()["b"].since < timedelta(hours=1)
    assert Ledger.read(records.job) == ledger, "it is written down"
    assert records.allocation.asked == ["undrain a"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("policy", "asked"), [("exclude", []), ("drain", ["drain b"])])
def test_only_who_wants_it_has_nodes_drained(tmp_path: Path, policy: str, asked: list[str]) -> None:
    """Nor does a controller that refuses stop anybody."""
    records = records_of(tmp_path, bad_node=policy, broken=True)
    verdict = Verdict(cause=Cause.MACHINE, node="b", why="it failed")
    records.count_failure(verdict, made_attempt(records.job), {"b": "Xid 79"})
    assert records.allocation.asked == asked  # type: ignore[attr-defined]
    assert len(said(records, "not drained")) == len(asked)
    assert Ledger.read(records.job).out()["b"].reason == "a check fails: Xid 79"


def test_a_checker_is_asked_where_that_is_wanted_and_may_break(tmp_path: Path) -> None:
    def broken(nodes: Sequence[str]) -> Mapping[str, str]:
        raise HostError("ssh: no")

    assert records_of(tmp_path / "1", checker=lambda nodes: {"a": "x"}).faults(["a"]) == {"a": "x"}
    assert records_of(tmp_path / "2", checker=lambda nodes: {"a": "x"}, check=False).faults(["a"]) == {}
    records = records_of(tmp_path / "3", checker=broken)
    assert records.faults(["a"]) == {}
    assert "ssh: no" in said(records, "not checked")[0]["detail"]


def test_a_disk_that_cannot_be_written_to_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = records_of(tmp_path)
    attempt = made_attempt(records.job, cause=Cause.CODE)
    records.job.nodes.mkdir()  # in the way, as a full disk is
    (records.job.root / "goodput.json").mkdir()
    records.job.attempt(1).record.unlink()
    records.job.attempt(1).record.mkdir()
    records._write(Ledger())
    records.ended(attempt, None)
    assert said(records, "nodes not written")
    assert said(records, "record not written")
    records.job.events.unlink()
    records.job.events.mkdir()
    records.say("signal", "SIGTERM came")
    records.add_up()
    assert not records.cancelled()
    told = capsys.readouterr().err
    for part in ("signal: SIGTERM came", "goodput not written", "events not read"):
        assert part in told


def test_how_an_attempt_ended_and_how_long_that_took_to_see(tmp_path: Path) -> None:
    """No clock of a node makes it end before it went wrong."""
    records = records_of(tmp_path)
    attempt = made_attempt(records.job, began=0, ended=110, cause=Cause.MACHINE)
    for fault, detected_s in ((at(95), 15.0), (None, 0.0), (at(500), 0.0)):
        records.ended(attempt, fault)
        event = said(records, "verdict")[-1]
        assert (event["cause"], event["attempt"], event["detected_s"]) == ("machine", 1, detected_s)


def test_how_long_each_part_took_from_a_fault_to_the_first_step(tmp_path: Path) -> None:
    records = records_of(tmp_path)
    records.ended(made_attempt(records.job, began=0, ended=110, cause=Cause.MACHINE), at(95))
    facts = records.training(made_attempt(records.job, 2, began=120), 40, [])
    assert (facts["after"], facts["cause"], facts["detected_s"] >= 0, facts["step"]) == (1, "machine", True, 40)
    assert facts["total_s"] >= facts["first_step_s"] > 0
