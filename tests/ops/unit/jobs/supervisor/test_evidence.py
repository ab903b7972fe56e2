"""What files tell of an attempt: the right one of several, and never more than is there."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glmforge.observe.record_files import JsonlFile
from glmforge_ops.jobs.supervisor.evidence import (
    gather,
    read_run_events,
)
from helpers.made_jobs import BEGAN, at, made_attempt, made_job, made_rank


def happened(run: Path, second: float, event: str, **facts: Any) -> None:
    with JsonlFile(run / "events.jsonl") as file:
        file.write({"time": at(second).isoformat(timespec="seconds"), "event": event, "step": 1, "detail": ""} | facts)


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    attempt = made_attempt(job)
    made_rank(job, 1, 1)
    (job.attempt(1).root / "rank-00000.json").write_text('{"rank": 0')
    found = gather(job, job.read(), attempt)
    assert [rank.rank for rank in found.ranks] == [1]


def test_events_of_the_second_in_which_it_began_are_its_own(tmp_path: Path) -> None:
    """The run's events have whole seconds."""
    for second, name in ((4, "earlier"), (5, "started"), (6, "later")):
        happened(tmp_path, second, name)
    since = BEGAN + timedelta(seconds=5, milliseconds=700)
    assert [event.event for event in read_run_events(tmp_path, since)] == ["started", "later"]


@pytest.mark.parametrize("facts", [{"time": "2026-03-01T12:00:09"}, {"time": "soon"}, {"time": 7}, {"step": "one"}])
def test_events_that_say_no_time_or_step_are_none(tmp_path: Path, facts: dict[str, Any]) -> None:
    happened(tmp_path, 5, "odd", **facts)
    happened(tmp_path, 6, "started")
    assert [event.event for event in read_run_events(tmp_path, BEGAN)] == ["started"]


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"node a: x\nsrun: error: Unable to create step\n\n", "srun: error: Unable to create step"),
        (b"\x1b[31mred\x1b[0m \xff", "\\x1b[31mred\\x1b[0m \N{REPLACEMENT CHARACTER}"),
        (b"a" * 10_000, "a" * 600),
        (b"", ""),
        (None, ""),
    ],
)
def test_the_last_that_a_starter_says(log: bytes | None, said: str, tmp_path: Path) -> None:
    job = made_job(tmp_path)
    attempt = made_attempt(job)
    if log is not None:
        (job.attempt(1).root / "starter.log").write_bytes(log)
    assert gather(job, job.read(), attempt).starter[-1:] == ((said,) if said else ())
