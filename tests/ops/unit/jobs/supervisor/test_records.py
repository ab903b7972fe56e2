"""What a supervisor writes down and reads again: the right attempts, nodes and times, and no disk that stops it."""

from pathlib import Path
from typing import Any

import pytest

from glmforge.observe.job_records import Cause
from glmforge_ops.jobs.supervisor.records import Records
from helpers.made_jobs import at, made_attempt, made_job


def records_of(root: Path) -> Records:
    return Records(made_job(root))


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


def test_a_disk_that_cannot_be_written_to_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = records_of(tmp_path)
    attempt = made_attempt(records.job, cause=Cause.CODE)
    records.job.attempt(1).record.unlink()
    records.job.attempt(1).record.mkdir()  # in the way, as a full disk is
    records.ended(attempt, None)
    assert said(records, "record not written")
    records.job.events.unlink()
    records.job.events.mkdir()
    records.say("signal", "SIGTERM came")
    assert "signal: SIGTERM came" in capsys.readouterr().err


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
