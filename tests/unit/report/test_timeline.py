"""The bars of a run's timeline, of its job's, and what they look like as a page and as a trace."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glmforge.errors import ConfigError, GlmforgeError
from glmforge.observe.job_records import Cause
from glmforge.observe.record_files import JsonlFile
from glmforge.report.timeline import (
    GENERATION,
    SAVES,
    SCORING,
    TRAINING,
    TRANSFER,
    Bar,
    Timeline,
    timeline_of,
    trace_events,
)
from glmforge.report.timeline_page import sums, thinned, ticks, write_timeline
from helpers.made_jobs import BEGAN, at, made_attempt, made_job, made_rank
from unit.report.test_report import Page


def noted(path: Path, second: float, **facts: Any) -> None:
    with JsonlFile(path) as file:
        file.write({"time": at(second).isoformat()} | facts)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Loads until 10, ten steps until 30 with an evaluation; killed; again from step 5 at 100; finished at 120."""
    root = tmp_path / "run"
    time, events = root / "time.jsonl", root / "events.jsonl"
    noted(events, 0, event="started", step=0)
    noted(time, 0, event="joined")
    noted(time, 10, event="loaded", step=0)
    noted(time, 30, step=10, steps=10, data_s=5.0, training_s=10.0, evaluation_s=3.0, saving_s=1.0)
    noted(events, 22, event="saved", step=5, detail="<b>", seconds=4.0, seconds_blocked=1.0)
    noted(events, 25, event="anomaly", step=9, detail="<script>alert(1)</script>")
    noted(events, 100, event="resumed", step=5)
    noted(time, 100, event="joined")
    noted(time, 105, event="loaded", step=5)
    noted(time, 118, step=15, steps=10, training_s=12.0)
    noted(events, 120, event="finished", step=15)
    return root


def bars(timeline: Timeline, lane: str) -> list[tuple[str, float, float]]:
    return [
        (bar.kind, (bar.begin - BEGAN).total_seconds(), (bar.end - BEGAN).total_seconds())
        for bar in timeline.bars
        if bar.lane == lane
    ]


def test_a_run_without_a_job(run: Path) -> None:
    found = timeline_of(run, now=at(500))
    assert bars(found, TRAINING) == [
        ("load", 0, 10), ("useful", 10, 20), ("data", 20, 25), ("evaluation", 25, 28), ("saving", 28, 29),
        ("other", 29, 30), ("load", 100, 105), ("recompute", 105, 111), ("useful", 111, 117), ("other", 117, 118),
        ("stop", 118, 120),
    ]  # fmt: skip
    assert bars(found, "starts") == [("running", 0, 30), ("running", 100, 120), ("not running", 30, 100)]
    assert bars(found, SAVES) == [("save", 18, 22)]
    assert found.marks[0].words == "anomaly: <script>alert(1)</script>"


def test_rollouts_are_cut_out_of_the_wait_for_batches(run: Path) -> None:
    with JsonlFile(run / "metrics.jsonl") as file:
        for step in range(1, 11):
            file.write({"step": step, "transfer_seconds": 0.05, "rollout_seconds": 0.3, "scoring_seconds": 0.1})
    found = sums(bar for bar in timeline_of(run, now=at(500)).bars if bar.lane == TRAINING)
    assert (found[TRANSFER], found[GENERATION]) == pytest.approx((0.5, 2.5))
    assert (found[SCORING], found["data"]) == pytest.approx((1.0, 1.0))


def test_a_job_with_its_ranks_and_a_hang(tmp_path: Path) -> None:
    root = tmp_path / "run"
    job = made_job(tmp_path / "jobs", kind="train", run=root)
    noted(root / "events.jsonl", 1, event="started", job="air", job_directory=str(job.root))
    noted(job.events, 0, event="supervisor started", submission="17")
    made_attempt(job, 1, began=5, ended=60, cause=Cause.HANG, first_step=0, last_step=4)
    made_rank(job, 1, 0, began=at(6), ended=at(59), status=-9)
    made_rank(job, 1, 1, began=at(7), ended=at(58), status=-9)
    for second, facts in ((8, {"event": "joined"}), (10, {"event": "loaded", "step": 0}),
                          (20, {"step": 4, "steps": 4, "training_s": 10.0})):  # fmt: skip
        noted(root / "time.jsonl", second, job="air", attempt=1, **facts)
    noted(job.events, 61, event="supervisor ended")
    found = timeline_of(root, now=at(500))
    assert ("hang", 20, 60) in bars(found, TRAINING)
    assert ("useful", 10, 20) in bars(found, TRAINING)
    assert bars(found, "rank 1") == [("failed", 7, 58)]
    assert found.lanes[-2:] == ["rank 0", "rank 1"]


def test_the_page_is_whole_and_harmless(run: Path, tmp_path: Path) -> None:
    text = write_timeline(timeline_of(run, now=at(500)), tmp_path / "page.html").read_text()
    page = Page(text)
    assert "<script" not in text
    assert "<b>" not in text
    assert "anomaly: <script>alert(1)</script>" in page.text
    assert text.count("<rect ") == len(timeline_of(run, now=at(500)).bars)
    assert "recompute" in page.text


def test_the_trace(run: Path, tmp_path: Path) -> None:
    timeline = timeline_of(run, now=at(500))
    trace = json.loads(write_timeline(timeline, tmp_path / "trace.json").read_text())
    assert trace == trace_events(timeline)
    events = trace["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    (save,) = [event for event in events if event["ph"] == "X" and event["cat"] == SAVES]
    assert (save["ts"], save["dur"], tracks[save["tid"]]) == (18_000_000, 4_000_000, SAVES)
    assert next(event["ts"] for event in events if event["ph"] == "i") == 25_000_000
    assert all(isinstance(event["ts"], int) and event["ts"] >= 0 for event in events if event["ph"] != "M")


def test_mistakes(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not end in \.html"):
        write_timeline(timeline_of(run), tmp_path / "page.pdf")
    (run / "time.jsonl").unlink()
    with pytest.raises(GlmforgeError, match="has no times recorded"):
        timeline_of(run)


def test_many_bars_are_drawn_column_by_column() -> None:
    """A minute of training between each two seconds of saves: what took most is drawn, over all of the time."""
    spans = [("useful", 60), ("saving", 2)] * 2000
    many, second = [], 0.0
    for kind, length in spans:
        many.append(Bar("lane", kind, at(second), at(second + length)))
        second += length
    drawn = thinned(many, second / 1000)
    assert len(drawn) <= 1001
    assert {bar.kind for bar in drawn} == {"useful"}
    assert drawn[0].begin == many[0].begin
    assert abs(drawn[-1].end - many[-1].end) <= 2 * timedelta(seconds=second / 1000)
    hang = Bar("lane", "hang", at(second), at(second + 3600))
    assert thinned([*many, hang], (second + 3600) / 1000)[-1].kind == "hang"


def test_ticks() -> None:
    assert ticks(9.5) == list(range(10))
    assert ticks(3600) == [0, 600, 1200, 1800, 2400, 3000, 3600]
    assert len(ticks(86400 * 100)) <= 12
