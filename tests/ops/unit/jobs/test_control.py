"""Ending jobs, and submitting them again: what the scheduler is asked, and what stays written."""

from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.observe.job_records import CANCELLED, Cause, JobDirectory
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs import control, submit
from glmforge_ops.jobs.registry import Job, find_jobs
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.show import next_command
from helpers.made_jobs import MadeScheduler, made_attempt, made_job


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> MadeScheduler:
    scheduler = MadeScheduler()
    monkeypatch.setattr(submit, "scheduler_of", scheduler.of)
    monkeypatch.setenv("PATH", "/no/programs")  # a Slurm of this machine is not asked
    return scheduler


def found(root: Path, scheduler: MadeScheduler) -> Job:
    return find_jobs(root, ["air"], scheduler.of)[0]


def test_a_job_that_runs_is_cancelled(tmp_path: Path, scheduler: MadeScheduler) -> None:
    job = made_job(tmp_path)
    scheduler.know("17", State.RUNNING)
    said = control.cancel(found(tmp_path, scheduler), scheduler.of)
    assert said == "air: cancelled (slurm 17, it was starting)"
    assert scheduler.cancelled == ["17"]
    assert job.is_cancelled()
    assert found(tmp_path, scheduler).state == "cancelled"


def test_it_is_noted_before_the_scheduler_is_told(
    tmp_path: Path, scheduler: MadeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a supervisor that is started at this moment would go on."""
    job, noted = made_job(tmp_path), list[bool]()

    def refuse(submission: str) -> None:
        noted.append(job.is_cancelled())
        raise LaunchError("scancel: no controller")

    scheduler.know("17", State.RUNNING)
    monkeypatch.setattr(scheduler, "cancel", refuse)
    with pytest.raises(LaunchError, match="no controller"):
        control.cancel(found(tmp_path, scheduler), scheduler.of)
    assert noted == [True]


def test_a_full_disk_keeps_no_job_running(
    tmp_path: Path, scheduler: MadeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_job(tmp_path)
    scheduler.know("17", State.RUNNING)
    chosen = found(tmp_path, scheduler)
    monkeypatch.setattr(JobDirectory, "event", full)
    with pytest.raises(RunFileError, match=r"events\.jsonl: cannot be written"):
        control.cancel(chosen, scheduler.of)
    assert scheduler.cancelled == ["17"]


def full(*_: object, **__: object) -> None:
    raise RunFileError("events.jsonl: cannot be written (No space left on device)")


def test_a_job_that_has_ended_is_left(tmp_path: Path, scheduler: MadeScheduler) -> None:
    job = made_job(tmp_path)
    made_attempt(job, cause=Cause.FINISHED)
    scheduler.know("17", State.COMPLETED)
    assert control.cancel(found(tmp_path, scheduler), scheduler.of) == "air: is finished already"
    assert scheduler.cancelled == []
    assert not job.is_cancelled()


def test_a_job_of_which_nothing_is_known_is_cancelled_too(tmp_path: Path, scheduler: MadeScheduler) -> None:
    made_job(tmp_path)
    said = control.cancel(found(tmp_path, scheduler), scheduler.of)
    assert scheduler.cancelled == ["17"]
    assert "whether it still ran is not known (slurm does not know it any more)" in said


@pytest.mark.parametrize("state", [State.WAITING, State.HELD, State.RUNNING])
def test_a_job_that_lives_is_not_submitted_again(tmp_path: Path, scheduler: MadeScheduler, state: State) -> None:
    made_job(tmp_path).script.write_text("exit\n")
    scheduler.know("17", state)
    with pytest.raises(LaunchError, match=r"air: is \w+ \(17\); .*glmforge jobs cancel air"):
        control.resubmit(found(tmp_path, scheduler), scheduler.of, force=True)
    assert scheduler.submitted == []


def test_who_cannot_tell_is_asked_to_say_so(tmp_path: Path, scheduler: MadeScheduler) -> None:
    made_job(tmp_path).script.write_text("exit\n")
    with pytest.raises(LaunchError, match="pass --force"):
        control.resubmit(found(tmp_path, scheduler), scheduler.of)
    assert control.resubmit(found(tmp_path, scheduler), scheduler.of, force=True).id == "1001"


def test_a_job_without_its_script(tmp_path: Path, scheduler: MadeScheduler) -> None:
    made_attempt(made_job(tmp_path), cause=Cause.CODE)
    with pytest.raises(LaunchError, match=r"script\.sh: is missing"):
        control.resubmit(found(tmp_path, scheduler), scheduler.of)


def test_a_damaged_job_is_neither_ended_nor_submitted(tmp_path: Path, scheduler: MadeScheduler) -> None:
    made_job(tmp_path).description.write_text("{")
    damaged = found(tmp_path, scheduler)
    with pytest.raises(LaunchError, match="cannot be cancelled"):
        control.cancel(damaged, scheduler.of)
    with pytest.raises(LaunchError, match="cannot be submitted"):
        control.resubmit(damaged, scheduler.of)


def test_a_job_that_has_ended_is_submitted_again(tmp_path: Path, scheduler: MadeScheduler) -> None:
    """Which lifts its cancellation."""
    job = made_job(tmp_path)
    job.script.write_text("exit\n")
    job.event(CANCELLED, submission="17")
    scheduler.know("17", State.CANCELLED)
    assert job.is_cancelled()
    submission = control.resubmit(found(tmp_path, scheduler), scheduler.of)
    assert submission.id == "1001"
    assert job.read_submissions()[-1] == submission
    assert not job.is_cancelled()
    assert found(tmp_path, scheduler).state == "waiting"


def test_of_two_who_submit_it_again_at_once_one_is_refused(tmp_path: Path, scheduler: MadeScheduler) -> None:
    made_job(tmp_path).script.write_text("exit\n")
    scheduler.know("17", State.CANCELLED)
    first, second = found(tmp_path, scheduler), found(tmp_path, scheduler)
    control.resubmit(first, scheduler.of)
    with pytest.raises(LaunchError, match="air: has just been submitted by another process"):
        control.resubmit(second, scheduler.of)
    assert scheduler.submitted == ["air"]


def test_a_start_that_slurm_refused_is_named_and_submitted_again(tmp_path: Path, scheduler: MadeScheduler) -> None:
    job = made_job(tmp_path)
    job.script.write_text("exit\n")
    scheduler.know("17", State.FAILED, reason="NonZeroExitCode")
    refused = found(tmp_path, scheduler)
    assert (refused.state, next_command(refused)) == ("failed", "glmforge jobs resubmit air")
    assert refused.why == "it ended before its script began: Slurm refused this start (NonZeroExitCode)"
    (job.root / ".script-ran-17-0").touch()
    assert "refused" not in found(tmp_path, scheduler).why
    scheduler.know("17", State.FAILED, restarts=1)
    assert "refused" in found(tmp_path, scheduler).why
    job.event("supervisor started", submission="17", restart=1)
    assert "refused" not in found(tmp_path, scheduler).why
    assert control.resubmit(found(tmp_path, scheduler), scheduler.of).id == "1001"


def test_of_a_task_nobody_knows_whether_it_was_refused(tmp_path: Path, scheduler: MadeScheduler) -> None:
    made_job(tmp_path, submission="12_3")
    scheduler.know("12_3", State.FAILED)
    assert "refused" not in found(tmp_path, scheduler).why


def test_a_job_that_slurm_holds_since_a_start_failed_is_released(tmp_path: Path, scheduler: MadeScheduler) -> None:
    """Under its number: what waits for it goes on waiting."""
    job = made_job(tmp_path)
    scheduler.know("17", State.HELD, reason="launch failed requeued held")
    held = found(tmp_path, scheduler)
    assert held.state == "held"
    assert "Slurm holds it since a start failed on a node" in held.why
    assert control.resubmit(held, scheduler.of).id == "17"
    assert (scheduler.released, scheduler.submitted) == (["17"], [])
    assert "submitted again" in [event["event"] for event in job.read_events()]
