"""Goodput put together from what supervisors, runs and Slurm's accounting write down."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glmforge.observe.job_records import Cause, JobDirectory, Submission
from glmforge.observe.metrics import METRICS
from glmforge.observe.record_files import JsonlFile
from glmforge.observe.run import record_start
from glmforge.report.goodput import (
    Goodput,
    goodput_of,
    headline,
    report_extra,
    rows_of,
    write_goodput,
)
from glmforge.report.goodput_spans import Use
from helpers.made_jobs import at, made_attempt, made_job, made_rank


def said(job: JobDirectory, second: float, event: str, **facts: Any) -> None:
    with JsonlFile(job.events) as file:
        file.write({"time": at(second).isoformat(), "event": event} | facts)


def told(run: Path, second: float, attempt: int, **facts: Any) -> None:
    with JsonlFile(run / "time.jsonl") as file:
        file.write({"time": at(second).isoformat(), "job": "air", "attempt": attempt} | facts)


def seconds(found: Goodput, attempt: int | None = None) -> dict[str, float]:
    return {use.value: time.total_seconds() for use, time in found.by_use(attempt).items()}


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    """Two nodes and a spare; preempted after step 40, queued for 1,000 s, begun again after step 30, finished."""
    run = tmp_path / "run"
    job = made_job(tmp_path / "jobs", kind="train", run=run)
    said(job, 100, "supervisor started", submission="17")
    made_attempt(job, 1, began=105, ended=300, cause=Cause.PREEMPTED, spares=["node3"], first_step=0, last_step=40)
    made_rank(job, 1, 0, began=at(106))
    told(run, 120, 1, event="joined")
    told(run, 130, 1, event="loaded", step=0)
    told(run, 210, 1, step=20, steps=20, training_s=70, data_s=6, saving_s=3)
    told(run, 290, 1, step=40, steps=20, training_s=80)
    said(job, 302, "verdict", attempt=1, fault=at(295).isoformat())
    said(job, 310, "requeued")
    said(job, 1310, "supervisor started", submission="17")
    made_attempt(job, 2, began=1311, ended=1400, cause=Cause.FINISHED, spares=["node3"], first_step=30, last_step=50)
    made_rank(job, 2, 0, began=at(1312))
    told(run, 1320, 2, event="joined")
    told(run, 1330, 2, event="loaded", step=30)
    told(run, 1390, 2, step=50, steps=20, training_s=50, evaluation_s=10)
    said(job, 1401, "verdict", attempt=2)
    said(job, 1402, "supervisor ended", status=0)
    return job


def test_a_job_that_was_requeued(job: JobDirectory) -> None:
    found = goodput_of(job, now=at(5000))
    assert seconds(found) == {
        "useful": 2 * (150 + 25),
        "start": 5 * 3 + 15 * 2 + 1 * 3 + 9 * 2,
        "load": 2 * (10 + 10),
        "data": 2 * 6,
        "evaluation": 2 * 10,
        "saving": 2 * 3,
        "other": 2 * 1,
        "recompute": 2 * 25,
        "stop": 2 * (10 + 10) + 3 * (10 + 2),
        "spare": 195 + 89,
    }
    assert found.allocated == timedelta(seconds=3 * (210 + 92))
    assert found.queue_s == 100 + 1000


def test_of_each_attempt(job: JobDirectory) -> None:
    found = goodput_of(job, now=at(5000))
    assert found.numbers == [1, 2]
    first, second = found.by_use(1), found.by_use(2)
    assert second[Use.RECOMPUTE] == timedelta(seconds=50)
    assert sum((*first.values(), *second.values()), timedelta(seconds=3 * 6)) == found.allocated


def test_a_job_that_runs_counts_until_now(job: JobDirectory) -> None:
    text = job.events.read_text().splitlines(keepends=True)
    job.events.write_text("".join(text[:4]))
    made_attempt(job, 2, began=1311, spares=["node3"], first_step=30)
    found = goodput_of(job, now=at(1400))
    assert found.allocated == timedelta(seconds=3 * (210 + 90))
    assert seconds(found, 2)["not measured"] == 2 * 10


def test_a_script_that_tells_its_steps_only(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    said(job, 0, "supervisor started", submission="17")
    made_attempt(job, 1, began=0, ended=100, cause=Cause.MACHINE, last_step=10, nodes=["node1"])
    made_rank(job, 1, 0, began=at(2))
    said(job, 12, "training", attempt=1, step=0)
    said(job, 100, "verdict", attempt=1, fault=at(92).isoformat())
    made_attempt(job, 2, began=110, ended=200, cause=Cause.FINISHED, first_step=5, last_step=15, nodes=["node1"])
    made_rank(job, 2, 0, began=at(112))
    said(job, 120, "training", attempt=2, step=5)
    said(job, 200, "verdict", attempt=2, fault=at(200).isoformat())
    said(job, 200, "supervisor ended")
    assert seconds(goodput_of(job)) == {
        "start": 2 + 2, "load": 10 + 8, "useful": 80 + 40, "recompute": 40, "stop": 8, "back-off": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"time": "yesterday", "step": 1, "steps": 1},
        {"time": 7, "event": "loaded"},
        {"step": "many", "steps": 1},
        {"time": "2026-03-01T12:03:20", "step": 45, "steps": 5, "training_s": 9},
        {"time": at(200).isoformat(), "step": 45, "steps": 0, "training_s": "long", "data_s": -5},
        {"time": at(200).isoformat(), "step": 45, "steps": 10**30, "training_s": 1e300},
    ],
)
def test_hostile_lines_change_no_sum(job: JobDirectory, tmp_path: Path, row: dict[str, Any]) -> None:
    with JsonlFile(tmp_path / "run/time.jsonl") as file:
        file.write({"job": "air", "attempt": 1} | row)
    assert goodput_of(job, now=at(5000)).allocated == timedelta(seconds=3 * (210 + 92))


def test_a_hang(job: JobDirectory) -> None:
    made_attempt(job, 2, began=1311, ended=1400, cause=Cause.HANG, spares=["node3"], first_step=30, last_step=50)
    found = seconds(goodput_of(job, now=at(5000)), 2)
    assert found["hang"] == 2 * 10


def test_a_supervisor_that_left_no_word_ended_with_its_last_attempt(tmp_path: Path) -> None:
    """It began in the moment in which it was submitted, and so did its attempt."""
    job = made_job(tmp_path)
    said(job, 0, "supervisor started", submission="17")
    made_attempt(job, 1, began=0, ended=100, cause=Cause.MACHINE)
    found = goodput_of(job, now=at(5000))
    assert (found.allocated, found.queue_s) == (timedelta(seconds=2 * 100), 0)


def test_a_supervisor_ends_with_its_first_word_of_that(job: JobDirectory) -> None:
    before = goodput_of(job, now=at(5000)).allocated
    said(job, 315, "supervisor ended", status=0)
    assert goodput_of(job, now=at(5000)).allocated == before


def test_nodes_that_were_given_at_once(job: JobDirectory) -> None:
    job.add_submission(Submission(id="18", launcher="slurm", time=at(2000), again=True))
    for second in (2000, 3000):
        said(job, second, "supervisor started", submission="18")
        said(job, second + 10, "supervisor ended")
    assert goodput_of(job, now=at(5000)).queue_s == 100 + 1000


def test_a_job_that_has_not_begun(tmp_path: Path) -> None:
    found = goodput_of(made_job(tmp_path), now=at(50))
    assert (found.share, found.allocated, found.numbers) == (None, timedelta(), [])
    assert headline(found).startswith("air: goodput - of 0.0s")


def test_what_the_supervisor_leaves(job: JobDirectory) -> None:
    write_goodput(job)
    metrics = json.loads((job.root / "goodput.json").read_text())["metrics"]
    assert set(metrics) <= set(METRICS)
    assert metrics["attempts_before"] == 2
    share = metrics["goodput"]
    assert sum(metrics["lost_node_seconds"].values()) == pytest.approx((1 - share) * metrics["allocated_node_seconds"])


def test_in_words(job: JobDirectory) -> None:
    found = goodput_of(job, now=at(5000))
    assert headline(found) == "air: goodput 38.6% of 15m 06s of nodes; 2 attempts, 18m 20s in the queue"
    meaning = "steps trained again that a failure had undone"
    assert ["recompute", "50s", "5.5%", meaning] in rows_of(found, attempts=False)
    assert rows_of(found, attempts=True)[0][3:5] == ["attempt 1", "attempt 2"]
    assert ["recompute", "50s", "5.5%", "", "50s", meaning] in rows_of(found, attempts=True)


def test_the_run_finds_its_job(job: JobDirectory, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert report_extra(run) == {}
    record_start(run, name="air", step=0, facts={"job": "air", "attempt": 1, "job_directory": str(job.root)})
    extra = report_extra(run)
    assert [tile.label for tile in extra["tiles"]] == ["Goodput"]
    (table,) = extra["tables"]
    assert (table.title, table.columns[0].title, table.columns[3].title) == ("Goodput", "Use", "Attempt 1")
    record_start(run, name="air", step=0)
    assert report_extra(run) == {}
