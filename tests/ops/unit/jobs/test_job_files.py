"""What the files of a job tell, damaged ones too: its submissions, attempts and steps."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from glmforge.observe.job_records import CANCELLED
from glmforge_ops.jobs.registry import as_dict, find_jobs, job_names
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.show import aligned, job_row
from glmforge_ops.jobs.state import JobState
from helpers.made_jobs import MadeScheduler, at, made_attempt, made_job


def state(root: Path, scheduler: MadeScheduler, name: str = "air") -> tuple[JobState, str]:
    job = find_jobs(root, [name], scheduler.of)[0]
    return job.state, job.why


def test_a_job_that_was_submitted_thousands_of_times(tmp_path: Path) -> None:
    """The end of its file begins in the middle of a line."""
    job, scheduler = made_job(tmp_path), MadeScheduler()
    line = job.submissions.read_text()
    job.submissions.write_text(line * 2000 + line.replace('"17"', '"18"'))
    scheduler.know("18", State.RUNNING)
    assert state(tmp_path, scheduler)[0] is JobState.STARTING


def damage_description(root: Path) -> None:
    (root / "job.yaml").write_text("name: [")


def remove_description(root: Path) -> None:
    (root / "job.yaml").unlink()


def damage_submissions(root: Path) -> None:
    (root / "submissions.jsonl").write_text('{"id": "17"\n{"id": 18}\n')


def damage_attempt(root: Path) -> None:
    (root / "attempts/0001").mkdir(parents=True)
    (root / "attempts/0001/attempt.json").write_text('{"number": 1e999}')


def renamed(root: Path) -> None:
    text = (root / "job.yaml").read_text()
    (root / "job.yaml").write_text(text.replace("name: b-damaged", "name: other"))


@pytest.mark.parametrize(
    "damage",
    [
        damage_description,
        remove_description,
        damage_submissions,
        damage_attempt,
        renamed,
    ],
)
def test_a_damaged_job_is_listed_with_the_reason_beside_the_others(tmp_path: Path, damage: Any) -> None:
    scheduler = MadeScheduler()
    scheduler.know("17", State.RUNNING)
    for name in ("a", "b-damaged", "c"):
        made_job(tmp_path, name)
    damage(tmp_path / "b-damaged")
    found = find_jobs(tmp_path, job_names(tmp_path), scheduler.of)
    assert [job.state for job in found] == [JobState.STARTING, JobState.DAMAGED, JobState.STARTING]
    assert "b-damaged" in found[1].why
    for line in aligned([job_row(job) for job in found]):
        assert line.isprintable()
    assert as_dict(found[1])["state"] == "damaged"


def test_only_the_ends_of_long_files_are_read(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    scheduler.know("17", State.COMPLETED)
    cancelled = json.dumps({"event": CANCELLED, "submission": "17"})
    job.events.write_text("damaged\n" * 20_000 + '{"event": "note"}\n' * 10_000 + cancelled)
    assert state(tmp_path, scheduler)[0] is JobState.CANCELLED


def test_steps_of_a_training_job_are_those_that_its_run_has_recorded(tmp_path: Path) -> None:
    run, scheduler = tmp_path / "run", MadeScheduler()
    scheduler.know("17", State.RUNNING)
    job = made_job(tmp_path / "jobs", kind="train", run=run)
    made_attempt(job, first_step=0)
    job.run_config.write_text("phases:\n- steps: 600\n- steps: 400\n")
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 300)))
    row = as_dict(find_jobs(tmp_path / "jobs", ["air"], scheduler.of)[0])
    assert (row["step"], row["num_steps"], row["attempt"], row["state"]) == (299, 1000, 1, "running")


def test_what_an_earlier_attempt_has_recorded_is_no_step_of_this_one(tmp_path: Path) -> None:
    run, scheduler = tmp_path / "run", MadeScheduler()
    scheduler.know("17", State.RUNNING)
    job = made_job(tmp_path / "jobs", kind="train", run=run)
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 7}\n')
    os.utime(run / "metrics.jsonl", (at(5).timestamp(), at(5).timestamp()))
    made_attempt(job, 2, began=10)
    found = find_jobs(tmp_path / "jobs", ["air"], scheduler.of)[0]
    assert (found.state, as_dict(found)["step"]) == (JobState.STARTING, 7)
    (run / "metrics.jsonl").write_text('{"step": 7}\n{"step": 8}\n')
    assert find_jobs(tmp_path / "jobs", ["air"], scheduler.of)[0].state is JobState.RUNNING


@pytest.mark.parametrize(
    "line", ["2026 0 12 hello", "2026 0 12 ", "2026 0 12 x\n2026 0 - y", f"2026 0 12 x\n2026 0 {'9' * 5000} y"]
)
def test_the_step_of_a_program_that_records_none_is_that_of_its_log(tmp_path: Path, line: str) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    scheduler.know("17", State.RUNNING)
    made_attempt(job)
    job.attempt(1).log(0).write_text(f"2026 0 - begins\n{line}\n2026 0 13")
    found = find_jobs(tmp_path, ["air"], scheduler.of)[0]
    assert (found.state, as_dict(found)["step"]) == (JobState.RUNNING, 12)
