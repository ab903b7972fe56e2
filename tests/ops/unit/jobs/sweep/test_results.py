"""Results of a sweep's points: read from runs, sorted, printed, drawn."""

import csv
import io
import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from glmforge.errors import ConfigError, LaunchError
from glmforge.observe.record_files import encode_line
from glmforge_ops.jobs.registry import find_jobs
from glmforge_ops.jobs.sweep.results import (
    Result,
    as_csv,
    as_row,
    default_measure,
    lines_of,
    ranked,
    read_result,
    read_run,
    write_page,
)
from glmforge_ops.jobs.sweep.sweep import PointRecord, SweepRecord
from helpers.fake_scheduler import FakeScheduler
from helpers.made_jobs import made_job


def write_run(directory, losses, *, held_out=(), speed=1000.0):
    directory.mkdir(parents=True)
    records = [
        {"step": 2 * n, "tokens": 100 * n, "loss": loss, "tokens_per_second": speed + n, "step_seconds": 0.5}
        for n, loss in enumerate(losses, start=1)
    ]
    (directory / "metrics.jsonl").write_bytes(b"".join(map(encode_line, records)))
    if held_out:
        (directory / "evaluation.jsonl").write_bytes(b"".join(map(encode_line, held_out)))
    return directory


def test_what_a_run_has_recorded(tmp_path):
    held_out = [
        {"step": 2, "source": "a", "bits_per_byte": 9.0},
        {"step": 6, "source": "a", "bits_per_byte": 3.0},
        {"step": 6, "source": "b", "bits_per_byte": 5.0},
        {"step": 6, "source": "b", "num_answers": 4},
    ]
    found, losses = read_run(write_run(tmp_path / "run", [4.0, 2.0, 3.0], held_out=held_out))
    assert losses == [(100, 4.0), (200, 2.0), (300, 3.0)]
    assert found == {
        "step": 6,
        "loss": 3.0,
        "best_loss": 2.0,
        "held_out": 4.0,
        "tokens_per_second": 1002.0,
        "seconds": 3.0,
    }


def test_runs_that_diverged_are_damaged_or_have_not_begun(tmp_path):
    diverged, _ = read_run(write_run(tmp_path / "diverged", [4.0, math.nan]))
    assert math.isnan(diverged["loss"])
    assert diverged["best_loss"] == 4.0
    assert read_run(tmp_path / "nothing") == ({}, [])
    damaged = write_run(tmp_path / "damaged", [4.0, 3.0]) / "metrics.jsonl"
    damaged.write_bytes(b"garbage\n" + damaged.read_bytes())
    made_job(tmp_path / "jobs", "lr-000", run=damaged.parent)
    (job,) = find_jobs(tmp_path / "jobs", ["lr-000"], lambda launcher: FakeScheduler())
    found = read_result(0, {"seed": 1}, job)
    assert found.measures == {}
    assert "metrics.jsonl: line 1" in read_result(0, {}, replace(job, why="")).why


def result(task, lr, loss, num_steps=None, **others):
    measures = {"loss": loss, **others}
    return Result(task, f"lr-{task:03d}", {"optim.lr": lr}, "finished", num_steps=num_steps, measures=measures)


RESULTS = [
    result(0, 1e-3, 3.0, step=10, num_steps=10, tokens_per_second=5.0, seconds=61.0),
    result(1, 2e-3, math.nan, best_loss=2.5, tokens_per_second=9.0),
    result(2, 3e-3, 2.0),
    Result(task=3, job="lr-003", settings={"optim.lr": 4e-3}, state="failed", why="code: it broke"),
]


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("loss", [2, 0, 1, 3]),
        ("tokens_per_second", [1, 0, 2, 3]),
        ("task", [0, 1, 2, 3]),
        ("state", [3, 0, 1, 2]),
        ("optim.lr", [0, 1, 2, 3]),
    ],
)
def test_the_best_come_first_and_those_without_the_value_last(key, order):
    assert [row.task for row in ranked(RESULTS, key, ["optim.lr"])] == order


def test_the_measure_and_columns_to_sort_by():
    assert default_measure(RESULTS) == "loss"
    assert default_measure([*RESULTS, result(4, 1, 1.0, held_out=1.5)]) == "held_out"
    with pytest.raises(LaunchError, match="--sort lr: unknown column; choose one of step, loss, "):
        ranked(RESULTS, "lr", ["optim.lr"])


def test_a_table_for_people():
    head, *rows, why = lines_of(ranked(RESULTS, "loss", []), ["optim.lr"])
    assert head.split() == ["job", "optim.lr", "state", "step", "loss", "best", "held-out", "tokens/s", "time"]
    assert rows[1].split() == ["lr-000", "0.001", "finished", "10/10", "3.0000", "5", "1m", "01s"]
    assert rows[2].split() == ["lr-001", "0.002", "finished", "nan", "2.5000", "9"]
    assert why == "lr-003: code: it broke"
    assert head.index("state") == rows[0].index("finished")


def test_rows_for_programs():
    rows = json.loads(json.dumps([as_row(row) for row in RESULTS], allow_nan=False))
    assert rows[1]["loss"] is None
    assert rows[0]["settings"] == {"optim.lr": 1e-3}
    assert "losses" not in rows[0]
    table = list(csv.DictReader(io.StringIO(as_csv(RESULTS, ["optim.lr"]))))
    assert [row["optim.lr"] for row in table] == ["0.001", "0.002", "0.003", "0.004"]
    assert [row["loss"] for row in table] == ["3.0", "", "2.0", ""]
    assert table[3]["why"] == "code: it broke"


def record(results):
    points = [PointRecord(task=row.task, job=row.job, settings=row.settings) for row in results]
    created = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    return SweepRecord(name="lr", created=created, config="x.yaml", launcher="local", at_once=2, points=points)


def test_settings_that_are_the_same_in_all_points_are_left_out():
    same = [Result(task=n, job=f"lr-{n}", settings={"a": n, "b": 1}, state="finished") for n in range(2)]
    assert record(same).differing() == ["a"]
    some = [*same, Result(task=2, job="lr-2", settings={"a": 5}, state="finished")]
    assert record(some).differing() == ["a", "b"]


def page_of(tmp_path, results):
    file = tmp_path / "page.html"
    write_page("lr", "points", results, record(results).differing(), None, file)
    return file.read_text()


def test_the_page_draws_what_the_table_says(tmp_path):
    tokens = [100.0 * n for n in range(1, 50)]
    rows = [
        Result(
            task=n,
            job=f"lr-{n:03d}",
            settings={"optim.lr": 10.0**-n, "model": f"<b>$x{n % 2}"},
            state="finished",
            measures={"loss": 1.0 + n},
            losses=[(each, 5.0 + n) for each in tokens],
        )
        for n in range(1, 8)
    ]
    rows.append(Result(task=9, job="lr-009", settings={"optim.lr": 1.0, "model": "tiny"}, state="failed"))
    page = page_of(tmp_path, rows)
    for row in rows:
        assert row.job in page
    assert "<b>$x" not in page
    assert page.count("<svg") == 3, "losses, and the loss over each setting"
    assert "last loss, nats/token" in page
    legend = [job for job in (f"lr-{n:03d}" for n in range(1, 8)) if page.count(job) > 1]
    assert legend == ["lr-001", "lr-002", "lr-003", "lr-004"]
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_page_of_runs_that_have_not_begun(tmp_path):
    rows = [Result(task=n, job=f"lr-{n}", settings={"optim.lr": n}, state="waiting") for n in range(2)]
    page = page_of(tmp_path, rows)
    assert "<svg" not in page
    assert "waiting" in page
    with pytest.raises(ConfigError, match=r"does not end in \.html"):
        write_page("lr", "points", rows, ["optim.lr"], None, tmp_path / "page.txt")
