"""What is heard of an attempt that runs: what counts as a sign of life, and as a step of its own."""

import json
import os
from pathlib import Path

from glmforge.observe.alive import Mark, write_mark
from glmforge.observe.job_records import AttemptDirectory
from glmforge.observe.record_files import JsonlFile
from glmforge.observe.run import RunDirectory
from glmforge_ops.jobs.supervisor.watch import Progress, logged_step
from helpers.made_jobs import at


def test_slow_work_that_says_so_is_a_sign_of_life(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    progress = Progress(AttemptDirectory(tmp_path / "attempt"), tmp_path, at(0))
    run.metrics.touch()
    os.utime(run.metrics, (at(10).timestamp(),) * 2)
    assert progress.last_sign() == at(10).timestamp()
    write_mark(run.alive, Mark(0.0, 3, "rollouts, 5 of 64"))
    os.utime(run.alive, (at(20).timestamp(),) * 2)
    assert progress.last_sign() == at(20).timestamp()


def test_the_last_sign_of_life(tmp_path: Path) -> None:
    """The beginning, then a rank's log, then the run's metrics; other files of the attempt are not the ranks'."""
    attempt, run = AttemptDirectory(tmp_path / "attempts/0001"), RunDirectory(tmp_path)
    attempt.root.mkdir(parents=True)
    progress = Progress(attempt, tmp_path, at(0))
    assert progress.last_sign() == at(0).timestamp()
    for path, second, last in ((attempt.root / "starter.log", 50, 0), (attempt.log(3), 10, 10), (run.metrics, 20, 20)):
        path.touch()
        os.utime(path, (at(second).timestamp(),) * 2)
        assert progress.last_sign() == at(last).timestamp()


def test_a_step_is_of_this_attempt(tmp_path: Path) -> None:
    """What the run has recorded before may be cut off and be written again."""
    attempt, run = AttemptDirectory(tmp_path / "attempts/0001"), RunDirectory(tmp_path)
    attempt.root.mkdir(parents=True)
    run.metrics.write_text(json.dumps({"step": 45}) + "\n")
    progress = Progress(attempt, tmp_path, at(0))
    with JsonlFile(run.events) as file:
        file.write({"time": at(1).isoformat(), "event": "resumed", "step": 40, "detail": ""})
    attempt.log(0).write_text("2026-01-01T00:00:01Z 0 40 loaded\n")
    assert progress.begun() is None
    run.metrics.write_text(json.dumps({"step": 40}) + "\n")
    assert progress.begun() is None
    run.metrics.write_text(json.dumps({"step": 41}) + "\n" + '{"step": 4')
    assert progress.begun() == 40


def test_a_step_of_a_program_stands_in_its_log(tmp_path: Path) -> None:
    attempt = AttemptDirectory(tmp_path)
    attempt.log(0).write_text("2026-01-01T00:00:00Z 0 - begins\n2026-01-01T0")
    assert Progress(attempt, None, at(0)).begun() is None
    attempt.log(0).write_text("2026-01-01T00:00:00Z 0 - begins\n2026-01-01T00:00:01Z 0 42 loss\n2026-01-01T0")
    assert Progress(attempt, None, at(0)).begun() == 0
    assert logged_step(attempt) == 42


def test_no_step_stands_in_a_line_whose_beginning_is_not_read(tmp_path: Path) -> None:
    attempt = AttemptDirectory(tmp_path)
    cut, last = "shards 7 999999 are read\n", "2026-01-01T00:00:01Z 0 43 "
    attempt.log(0).write_text(f"2026-01-01T00:00:00Z 0 42 {cut}{last.ljust((1 << 16) - len(cut) - 1, 'x')}\n")
    assert logged_step(attempt) == 43
