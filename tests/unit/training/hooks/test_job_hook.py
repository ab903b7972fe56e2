"""A run that belongs to a job: what it writes of its time, and the goodput in its first record."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glmforge.observe.job import JobOfRun, job_of_this_process
from glmforge.observe.record_files import JsonlFile, RunFileError, read_jsonl
from glmforge.training.hooks import job as hook_module
from glmforge.training.hooks.job import JobHook
from glmforge.training.step import StepResult
from helpers.hooks import FakeTrainer, step_result


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hook_module, "time", clock)
    return clock


def take_step(trainer: FakeTrainer, clock: Clock, *, training: float, data: float = 0, evaluation: float = 0) -> None:
    hook: JobHook = trainer.hooks[0]
    clock.now += data
    hook.on_step_start(trainer)  # type: ignore[arg-type]
    clock.now += training
    trainer.state.step += 1
    result: StepResult = step_result(trainer.config.phases[0], seconds=training + data)
    result = replace(result, data_seconds=data)
    if evaluation:
        clock.now += evaluation
        hook.on_evaluation(trainer, [])  # type: ignore[arg-type]
    hook.on_step_end(trainer, result)  # type: ignore[arg-type]


def lines(run: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "time"} for row in read_jsonl(run / "time.jsonl")]


def made(run: Path, directory: Path | None = None) -> FakeTrainer:
    trainer = FakeTrainer(JobHook(run, JobOfRun("air", 2, directory)))
    trainer.state.step = 10
    trainer.start()
    return trainer


HEAD = {"job": "air", "attempt": 2}


def test_where_the_time_goes(tmp_path: Path, clock: Clock) -> None:
    trainer = made(tmp_path)
    take_step(trainer, clock, training=0.4, data=0.1)
    clock.now += 0.2  # behind the hook: saving
    take_step(trainer, clock, training=0.5, evaluation=3)
    assert lines(tmp_path) == [
        HEAD | {"event": "loaded", "step": 10},
        HEAD
        | {
            "step": 12,
            "steps": 2,
            "training_s": pytest.approx(0.9),
            "data_s": pytest.approx(0.1),
            "evaluation_s": pytest.approx(3),
            "saving_s": pytest.approx(0.2),
        },
    ]


def test_a_run_without_a_job_and_benchmarks_as_evaluation(tmp_path: Path, clock: Clock) -> None:
    trainer = FakeTrainer(JobHook(tmp_path))
    trainer.start()
    hook: JobHook = trainer.hooks[0]
    clock.now += 1
    hook.on_step_start(trainer)  # type: ignore[arg-type]
    clock.now += 5
    hook.on_benchmarks(trainer, [])  # type: ignore[arg-type]
    trainer.state.step += 1
    hook.on_step_end(trainer, step_result(trainer.config.phases[0], seconds=2.0))  # type: ignore[arg-type]
    parts = {"training_s": pytest.approx(2), "evaluation_s": pytest.approx(3)}
    assert lines(tmp_path) == [{"event": "loaded", "step": 0}, {"step": 1, "steps": 1} | parts]


def test_small_steps_do_not_each_write_a_line(tmp_path: Path, clock: Clock) -> None:
    trainer = made(tmp_path)
    for _ in range(25):
        take_step(trainer, clock, training=0.1)
    written = lines(tmp_path)[1:]
    assert 2 <= len(written) <= 3
    assert sum(line["steps"] for line in written) >= 20


def test_a_long_run_writes_few_lines_and_its_last_one_at_the_end(tmp_path: Path, clock: Clock) -> None:
    trainer = made(tmp_path)
    for _ in range(2000):
        take_step(trainer, clock, training=5)
    assert len(lines(tmp_path)) < 600
    take_step(trainer, clock, training=5)
    trainer.close()
    assert lines(tmp_path)[-1]["step"] == 10 + 2001
    assert sum(line["steps"] for line in lines(tmp_path)[1:]) == 2001


def test_steps_before_a_roll_back_are_written(tmp_path: Path, clock: Clock) -> None:
    trainer = made(tmp_path)
    take_step(trainer, clock, training=0.1)
    trainer.state.step = 3
    trainer.hooks[0].on_rollback(trainer)
    assert lines(tmp_path)[-1] == HEAD | {"step": 11, "steps": 1, "training_s": pytest.approx(0.1)}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"metrics": {"goodput": 0.5, "queue_seconds": 3.0}}, {"goodput": 0.5, "queue_seconds": 3.0}),
        ({"metrics": {"loss": 0.5}}, {}),
        ({"metrics": {"wibble": 0.5}}, {}),
        ({"metrics": {"goodput": "half"}}, {}),
        ({"metrics": ["goodput"]}, {}),
        ([], {}),
        (None, {}),
    ],
)
def test_goodput_before_in_the_first_record(tmp_path: Path, told: Any, expected: dict[str, float]) -> None:
    if told is not None:
        (tmp_path / "goodput.json").write_text(json.dumps(told))
    trainer = made(tmp_path / "run", tmp_path)
    result = step_result(trainer.config.phases[0])
    trainer.hooks[0].on_record(trainer, result)
    assert trainer.recorded() == expected
    trainer.bus.flush()
    trainer.hooks[0].on_record(trainer, result)
    assert trainer.recorded() == {}


def test_the_job_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLMFORGE_JOB", "GLMFORGE_ATTEMPT", "GLMFORGE_JOB_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    assert job_of_this_process() is None
    monkeypatch.setenv("GLMFORGE_JOB", "air")
    assert job_of_this_process() is None
    monkeypatch.setenv("GLMFORGE_ATTEMPT", "3")
    assert job_of_this_process() == JobOfRun("air", 3, None)
    monkeypatch.setenv("GLMFORGE_JOB_DIRECTORY", "/jobs/air")
    job = job_of_this_process()
    assert job is not None
    assert job.facts == {"job": "air", "attempt": 3, "job_directory": "/jobs/air"}


def test_a_full_disk_costs_lines_and_not_the_run(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: JsonlFile, record: object) -> None:
        raise RunFileError("time.jsonl: cannot be written (No space left on device)")

    trainer = made(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(JsonlFile, "write", fail)
        for _ in range(2):
            take_step(trainer, clock, training=100)
    take_step(trainer, clock, training=100)
    assert [line.get("step") for line in lines(tmp_path)] == [10, 13]
    assert len(caplog.messages) == 1
