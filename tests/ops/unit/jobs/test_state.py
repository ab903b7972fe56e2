"""The state of a job, of what its files and its scheduler tell."""

from pathlib import Path
from typing import Any

import pytest

from glmforge.observe.job_records import CANCELLED, SUPERVISOR_LEASE, Cause, Submission
from glmforge.runtime.lease import Lease
from glmforge_ops.jobs.registry import find_jobs
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.state import JobState
from helpers.made_jobs import MadeScheduler, at, made_attempt, made_job

RUNNING = {"first_step": 0, "last_step": 7}


def state(root: Path, scheduler: MadeScheduler, name: str = "air") -> tuple[JobState, str]:
    job = find_jobs(root, [name], scheduler.of)[0]
    return job.state, job.why


@pytest.mark.parametrize(
    ("seen", "attempt", "expected"),
    [
        (State.WAITING, None, JobState.WAITING),
        (State.WAITING, {"cause": Cause.PREEMPTED}, JobState.WAITING),
        (State.HELD, None, JobState.HELD),
        (State.RUNNING, None, JobState.STARTING),
        (State.RUNNING, {}, JobState.STARTING),
        (State.RUNNING, {"first_step": 7, "last_step": 7}, JobState.STARTING),
        (State.RUNNING, RUNNING, JobState.RUNNING),
        (State.RUNNING, {"cause": Cause.MACHINE}, JobState.RESTARTING),
        (State.RUNNING, {"cause": Cause.FINISHED}, JobState.ENDING),
        (State.SUSPENDED, RUNNING, JobState.SUSPENDED),
        (State.ENDING, RUNNING, JobState.ENDING),
        (State.COMPLETED, {"cause": Cause.FINISHED}, JobState.FINISHED),
        (State.COMPLETED, None, JobState.FINISHED),
        (State.COMPLETED, {"cause": Cause.STOPPED}, JobState.STOPPED),
        (State.COMPLETED, {"cause": Cause.CODE}, JobState.FAILED),
        (State.FAILED, {"cause": Cause.CODE}, JobState.FAILED),
        (State.FAILED, None, JobState.FAILED),
        (State.TIME_LIMIT, RUNNING, JobState.FAILED),
        (State.NODE_FAILED, RUNNING, JobState.FAILED),
        (State.CANCELLED, RUNNING, JobState.CANCELLED),
        (None, {"cause": Cause.FINISHED}, JobState.FINISHED),
        (None, {"cause": Cause.CODE}, JobState.FAILED),
        (None, {"cause": Cause.STOPPED}, JobState.STOPPED),
        (None, {"cause": Cause.PREEMPTED}, JobState.UNKNOWN),
        (None, RUNNING, JobState.UNKNOWN),
        (None, None, JobState.UNKNOWN),
    ],
)
def test_state(tmp_path: Path, seen: State | None, attempt: dict[str, Any] | None, expected: JobState) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    if attempt is not None:
        made_attempt(job, **attempt)
    if seen is not None:
        scheduler.know("17", seen)
    assert state(tmp_path, scheduler)[0] is expected


def test_a_job_that_was_never_handed_over(tmp_path: Path) -> None:
    made_job(tmp_path, submission=None)
    assert state(tmp_path, MadeScheduler())[0] is JobState.NEW


def test_the_verdict_of_an_earlier_submission_does_not_count(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    made_attempt(job, cause=Cause.FINISHED)
    job.add_submission(Submission(id="18", launcher="slurm", time=at(1000)))
    scheduler.know("18", State.FAILED, reason="NonZeroExitCode")
    found, why = state(tmp_path, scheduler)
    assert found is JobState.FAILED
    assert "before its script began: Slurm refused this start (NonZeroExitCode)" in why


def test_cancelled_until_it_is_submitted_again(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    made_attempt(job, **RUNNING)
    scheduler.know("17", State.RUNNING)
    job.event(CANCELLED, "by hand", submission="17")
    assert state(tmp_path, scheduler)[0] is JobState.ENDING
    scheduler.know("17", State.COMPLETED)
    assert state(tmp_path, scheduler)[0] is JobState.CANCELLED
    job.add_submission(Submission(id="18", launcher="slurm", time=at(1000)))
    scheduler.know("18", State.WAITING)
    assert state(tmp_path, scheduler)[0] is JobState.WAITING


def test_a_scheduler_that_does_not_answer_is_told_of_by_each_of_its_jobs(tmp_path: Path) -> None:
    made_job(tmp_path)
    assert state(tmp_path, MadeScheduler(broken="squeue: no controller")) == (
        JobState.UNKNOWN,
        "squeue: no controller",
    )


def test_a_forgotten_job_whose_supervisor_lives_is_running(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    made_attempt(job, **RUNNING)
    with Lease(job.root, "glmforge supervise", name=SUPERVISOR_LEASE):
        assert state(tmp_path, MadeScheduler())[0] is JobState.RUNNING
    assert state(tmp_path, MadeScheduler())[0] is JobState.UNKNOWN


def test_so_is_one_whose_supervisor_is_on_a_machine_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made_job(tmp_path)
    made_attempt(job, **RUNNING)
    monkeypatch.setattr("glmforge_ops.jobs.state.is_alive", lambda _: None)
    with Lease(job.root, "glmforge supervise", name=SUPERVISOR_LEASE):
        assert state(tmp_path, MadeScheduler(broken="squeue: no controller"))[0] is JobState.RUNNING


def test_but_not_if_its_scheduler_answers_and_has_forgotten_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor was lost with its node, and its claim is left over: else the job could not be submitted again."""
    job = made_job(tmp_path)
    made_attempt(job, **RUNNING)
    monkeypatch.setattr("glmforge_ops.jobs.state.is_alive", lambda _: None)
    with Lease(job.root, "glmforge supervise", name=SUPERVISOR_LEASE):
        assert state(tmp_path, MadeScheduler())[0] is JobState.UNKNOWN


@pytest.mark.parametrize(("launcher", "expected"), [("local", JobState.FAILED), ("mpi", JobState.STOPPED)])
def test_a_process_that_ended_without_a_verdict(tmp_path: Path, launcher: str, expected: JobState) -> None:
    """A supervisor would have left one."""
    made_job(tmp_path, launch={"launcher": launcher, "nodes": 1})
    scheduler = MadeScheduler(name=launcher)
    scheduler.know("17", State.ENDED)
    assert state(tmp_path, scheduler)[0] is expected
