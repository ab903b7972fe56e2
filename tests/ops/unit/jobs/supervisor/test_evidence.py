"""What files tell of an attempt: the right one of several, and never more than is there."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glmforge.observe.record_files import JsonlFile
from glmforge_ops.jobs.supervisor.evidence import gather, read_dumps, read_run_events
from helpers.made_jobs import BEGAN, at, made_attempt, made_job, made_rank


def happened(run: Path, second: float, event: str, **facts: Any) -> None:
    with JsonlFile(run / "events.jsonl") as file:
        file.write({"time": at(second).isoformat(timespec="seconds"), "event": event, "step": 1, "detail": ""} | facts)


HANGS = """rank: 2 of 6
steps done: 40

== Python stacks ==
Thread 0x1 (most recent call first):

== unfinished collectives ==
{}

== stacks below Python ==
"""


def test_which_ranks_wrote_where_they_hang(tmp_path: Path) -> None:
    """Files of an earlier attempt and of other programs are none of them."""
    collective = "gloo:all_reduce number 17 of group 0 default_pg: started, [[4]] -> [[4]]"
    for rank, text in enumerate((collective, "none", "not recorded (TORCH_FR_BUFFER_SIZE)")):
        (tmp_path / f"20260301T120000Z-rank-{rank:05d}.txt").write_text(HANGS.format(text))
    (tmp_path / "20260301T110000Z-rank-00005.txt").write_text(HANGS.format("none"))
    os.utime(tmp_path / "20260301T110000Z-rank-00005.txt", (0, 0))
    (tmp_path / "nccl-rank-3.txt").write_text("")
    assert read_dumps(tmp_path, BEGAN) == {0: True, 1: False, 2: None}


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    attempt = made_attempt(job)
    made_rank(job, 1, 1)
    (job.attempt(1).root / "rank-00000.json").write_text('{"rank": 0')
    found = gather(job.attempt(1), None, attempt)
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
    assert gather(job.attempt(1), None, attempt).starter[-1:] == ((said,) if said else ())
