"""A run whose files cannot be written trains on, says so, and goes on with them when there is space again."""

import logging
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glmforge.errors import GlmforgeError
from glmforge.observe.bus import Kind, MetricsBus
from glmforge.observe.metric_table import MetricTable
from glmforge.observe.record_files import RunFileError, read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.observe.run_sinks import ProgressLine, RunFiles
from glmforge.observe.tensorboard import TensorBoard


@contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond; a longer write fails after a part, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(bus: MetricsBus, *steps: int) -> None:
    for step in steps:
        bus.record({"step": step, "phase": "x" * 400}, step=step)
        bus.flush()


def test_a_full_disk_costs_records_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = RunFiles(RunDirectory(tmp_path))
    bus = MetricsBus([sink])
    bus.open(0, 0)
    with caplog.at_level(logging.WARNING):
        with disk_of(1000):
            write(bus, 1, 2, 3, 4)
        write(bus, 5)
    bus.close()
    assert bus.sinks == [sink]
    assert [record["step"] for record in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2, 5]
    missing, again = read_jsonl(tmp_path / "events.jsonl")
    assert (missing["event"], missing["step"]) == ("records missing", 3)
    assert (again["event"], again["step"]) == ("records written again", 5)
    assert again["detail"].startswith("metrics.jsonl lost 2 records, from step 3 on: ")
    assert "cannot be written (File too large)" in again["detail"]
    first, second = caplog.messages
    assert "training continues, and records are dropped until it recovers" in first
    assert "is writable again" in second
    assert "\n" not in first + second


def test_events_that_find_no_room_are_told_of_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus = MetricsBus([RunFiles(RunDirectory(tmp_path))])
    bus.open(0, 0)
    with disk_of(10):
        write(bus, 1)
        bus.write(Kind.EVENT, {"step": 1, "event": "saved"})
    bus.write(Kind.EVENT, {"step": 2, "event": "saved"})
    saved, again = read_jsonl(tmp_path / "events.jsonl")
    assert (saved["event"], again["event"]) == ("saved", "records written again")
    assert again["detail"].startswith("events.jsonl lost 2 records, from step 1 on")
    assert len(caplog.messages) == 3  # metrics.jsonl and events.jsonl, and the one again


def test_a_record_that_json_cannot_hold_is_left_out(tmp_path: Path) -> None:
    bus = MetricsBus([RunFiles(RunDirectory(tmp_path))])
    bus.open(0, 0)
    bus.write(Kind.ANOMALY, {"step": 1, "samples": {1, 2}})
    bus.write(Kind.ANOMALY, {"step": 2, "samples": [1, 2]})
    assert [record["step"] for record in read_jsonl(tmp_path / "anomalies.jsonl")] == [2]
    assert [event["event"] for event in read_jsonl(tmp_path / "events.jsonl")] == [
        "records missing",
        "records written again",
    ]


def test_what_is_damaged_or_not_installed_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(RunFileError, match="line 2"):
        MetricsBus([RunFiles(RunDirectory(tmp_path))]).open(3, 0)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(GlmforgeError, match=r"observe.tensorboard: true.*pip install 'glmforge\[observe\]'"):
        TensorBoard(tmp_path)


def test_the_progress_line_tells_scores_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(None)
    line.open(0, 0, MetricTable())
    scored = {"step": 20, "benchmark": "sums", "benchmark_score": 0.94}
    line.write(Kind.BENCHMARK, scored | {"benchmark_low": 0.9156, "benchmark_high": 0.958})
    line.write(Kind.BENCHMARK, scored | {"benchmark_low": None, "benchmark_high": None})
    line.close()
    assert capsys.readouterr().err.splitlines() == [
        "step 20 · sums 0.940 (0.916 to 0.958)",
        "step 20 · sums 0.940",
    ]
