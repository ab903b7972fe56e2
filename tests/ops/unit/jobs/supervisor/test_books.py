"""What a supervisor writes down and reads again: the right attempts, nodes and times, and no disk that stops it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.launch import SupervisorConfig
from glmforge.errors import HostError
from glmforge.observe.job_records import AttemptRecord, Cause, JobDirectory, RankRecord, Verdict, utc_now
from glmforge_ops.jobs.supervisor.books import Books, Checker
from glmforge_ops.jobs.supervisor.policy.ledger import Ledger, Node, Out
from glmforge_ops.jobs.supervisor.verdict.evidence import Evidence, RunEvent
from helpers.fake_starter import FakeAllocation
from helpers.made_jobs import at, made_attempt, made_job


@dataclass
class Allocation(FakeAllocation):
    broken: bool = False
    asked: list[str] = field(default_factory=list)

    def drain(self, node: str, reason: str) -> None:
        self.asked.append(f"drain {node}")
        if self.broken:
            raise HostError("scontrol: no controller")

    def undrain(self, node: str) -> None:
        self.asked.append(f"undrain {node}")


def books_of(root: Path, *, checker: Checker | None = None, broken: bool = False, **config: Any) -> Books:
    return Books(made_job(root), SupervisorConfig(**config), Allocation(("a", "b"), broken=broken), checker)


def said(books: Books, name: str) -> list[dict[str, Any]]:
    return [event for event in books.job.read_events() if event["event"] == name]


def test_history_begins_behind_the_last_time_that_it_was_settled(tmp_path: Path) -> None:
    books = books_of(tmp_path)
    for number in range(1, 6):
        made_attempt(books.job, number, cause=Cause.CODE)
    assert len(books.history()) == 5
    books.say("decided", "", do="stop", attempt=3)
    books.say("decided", "", do="done", attempt=2)
    books.say("decided", "", do="restart", attempt=5)
    assert [attempt.number for attempt in books.history()] == [4, 5]


def out(hours: float, *, drained: bool = False) -> Node:
    return Node(out=Out(since=utc_now() - timedelta(hours=hours), reason="broken", drained=drained))


def test_nodes_whose_time_is_over_come_back_if_they_pass_a_check(tmp_path: Path) -> None:
    books = books_of(tmp_path, checker=lambda nodes: {"b": "Xid 79"} if "b" in nodes else {}, node_back_after_s=3600)
    Ledger(nodes={"a": out(2, drained=True), "b": out(2), "c": out(0.5), "d": out(3)}).write(books.job.nodes)
    ledger = books.ledger()
    assert set(ledger.out()) == {"b", "c"}
    assert ledger.out()["b"].reason == "a check fails: Xid 79"
    assert utc_now() - ledger.out()["b"].since < timedelta(hours=1)
    assert Ledger.read(books.job) == ledger, "it is written down"
    assert books.allocation.asked == ["undrain a"]  # type: ignore[attr-defined]


def test_what_one_check_found_is_written_before_the_next(tmp_path: Path) -> None:
    """Nobody knows how long a check takes, nor whether the supervisor lives to its end."""
    job: list[JobDirectory] = []

    def checker(nodes: Sequence[str]) -> Mapping[str, str]:
        if nodes == ["b"]:
            assert Ledger.read(job[0]).out()["a"].reason == "a check fails: Xid 79"
        return {"a": "Xid 79"}

    books = books_of(tmp_path, checker=checker, node_back_after_s=3600)
    job.append(books.job)
    Ledger(nodes={"a": out(2), "b": out(2)}).write(books.job.nodes)
    assert set(books.ledger().out()) == {"a"}


@pytest.mark.parametrize(("policy", "asked"), [("exclude", []), ("drain", ["drain b"])])
def test_only_who_wants_it_has_nodes_drained(tmp_path: Path, policy: str, asked: list[str]) -> None:
    """Nor does a controller that refuses stop anybody."""
    books = books_of(tmp_path, bad_node=policy, broken=True)
    verdict = Verdict(cause=Cause.MACHINE, node="b", why="it failed")
    books.count_failure(verdict, made_attempt(books.job), {"b": "Xid 79"})
    assert books.allocation.asked == asked  # type: ignore[attr-defined]
    assert len(said(books, "not drained")) == len(asked)
    assert Ledger.read(books.job).out()["b"].reason == "a check fails: Xid 79"


def test_a_checker_is_asked_where_that_is_wanted_and_may_break(tmp_path: Path) -> None:
    def broken(nodes: Sequence[str]) -> Mapping[str, str]:
        raise HostError("ssh: no")

    assert books_of(tmp_path / "1", checker=lambda nodes: {"a": "x"}).faults(["a"]) == {"a": "x"}
    assert books_of(tmp_path / "2", checker=lambda nodes: {"a": "x"}, check=False).faults(["a"]) == {}
    books = books_of(tmp_path / "3", checker=broken)
    assert books.faults(["a"]) == {}
    assert "ssh: no" in said(books, "not checked")[0]["detail"]


def test_a_disk_that_cannot_be_written_to_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    books = books_of(tmp_path)
    attempt = made_attempt(books.job, cause=Cause.CODE)
    books.job.nodes.mkdir()  # in the way, as a full disk is
    (books.job.root / "goodput.json").mkdir()
    books.job.attempt(1).record.unlink()
    books.job.attempt(1).record.mkdir()
    books._write(Ledger())
    books.write_record(attempt)
    assert said(books, "nodes not written")
    assert said(books, "record not written")
    books.job.events.unlink()
    books.job.events.mkdir()
    books.say("signal", "SIGTERM came")
    books.add_up()
    assert not books.cancelled()
    told = capsys.readouterr().err
    for part in ("signal: SIGTERM came", "goodput not written", "events not read"):
        assert part in told


def test_the_log_of_the_rank_that_failed_is_of_the_last_attempt(tmp_path: Path) -> None:
    books = books_of(tmp_path)
    history = [made_attempt(books.job, number, cause=Cause.CODE) for number in (1, 2)]
    verdict = Verdict(cause=Cause.CODE, rank=3, why="")
    assert books.log_of(verdict, history).endswith("attempts/0002/rank-00003.log")
    assert books.log_of(verdict, []) == books.log_of(None, history) == ""


HANG = RunEvent("hang", 40, "no sign of life for 60 s", at(100))
FIRST = RankRecord(rank=1, local_rank=1, node="a", host="a", pid=1, began=at(0), ended=at(95), status=1)


def faults_at(books: Books, cause: Cause, **known: Any) -> tuple[datetime, float]:
    attempt: AttemptRecord = made_attempt(books.job, began=0, ended=110, cause=cause)
    log = books.job.attempt(1).log(0)
    log.write_text("the last that was heard\n")
    os.utime(log, (at(50).timestamp(), at(50).timestamp()))
    books.say_how_it_ended(attempt, Verdict(cause=cause, why="it failed"), Evidence(attempt, **known))
    event = said(books, "verdict")[-1]
    return datetime.fromisoformat(event["fault"]), event["detected_s"]


@pytest.mark.parametrize(
    ("cause", "known", "second"),
    [
        (Cause.UNKNOWN, {"ranks": (FIRST,)}, 95),
        (Cause.UNKNOWN, {}, 110),
        (Cause.HANG, {"events": (HANG,)}, 40),
        (Cause.HANG, {"silent_since": at(30).timestamp(), "events": (HANG,)}, 30),
        (Cause.UNKNOWN, {"events": (HANG,), "ranks": (FIRST,)}, 95),
        (Cause.NODE_LOST, {"ranks": (FIRST,)}, 50),
        # a node's clock is ahead
        (Cause.UNKNOWN, {"ranks": (FIRST.model_copy(update={"ended": at(500)}),)}, 110),
    ],
)
def test_when_it_failed(tmp_path: Path, cause: Cause, known: dict[str, Any], second: float) -> None:
    assert faults_at(books_of(tmp_path), cause, **known) == (at(second).astimezone(UTC), 110 - second)
