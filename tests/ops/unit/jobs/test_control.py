"""Ending jobs, and submitting them again: what the scheduler is asked, and what stays written."""

from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs import control
from glmforge_ops.jobs.cancelled import Cancelling, is_cancelled
from glmforge_ops.jobs.job import Cause, JobDirectory, Submission
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.show.words import next_command
from glmforge_ops.jobs.state.find import Job, find_jobs
from glmforge_ops.jobs.submit import hand_over
from helpers.made_jobs import MadeScheduler, at, made_attempt, made_job


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> MadeScheduler:
    scheduler = MadeScheduler()
    monkeypatch.setattr(hand_over, "scheduler_of", scheduler.of)
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
    assert is_cancelled(job)
    assert found(tmp_path, scheduler).state == "cancelled"


def test_it_is_noted_before_the_scheduler_is_told(tmp_path: Path, scheduler: MadeScheduler) -> None:
    """Else a supervisor that is started at this moment would go on."""
    job = made_job(tmp_path)
    scheduler.know("17", State.RUNNING)
    chosen = found(tmp_path, scheduler)
    scheduler.broken = "scancel: no controller"
    with pytest.raises(LaunchError, match="no controller"):
        control.cancel(chosen, scheduler.of)
    assert is_cancelled(job)


def test_a_full_disk_keeps_no_job_running(
    tmp_path: Path, scheduler: MadeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_job(tmp_path)
    scheduler.know("17", State.RUNNING)
    chosen = found(tmp_path, scheduler)
    monkeypatch.setattr(JobDirectory, "event", full)
    with pytest.raises(LaunchError, match=r"cancelled, but that could not be noted.*\(events.jsonl: cannot be written"):
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
    assert not is_cancelled(job)


def test_a_job_whose_start_was_refused_is_cancelled_although_it_is_over(
    tmp_path: Path, scheduler: MadeScheduler
) -> None:
    job = made_job(tmp_path)
    scheduler.know("17", State.FAILED, reason="NonZeroExitCode")
    assert control.cancel(found(tmp_path, scheduler), scheduler.of) == "air: cancelled (slurm 17, it was failed)"
    assert is_cancelled(job)
    assert scheduler.cancelled == ["17"], "it may be back in the queue just now"
    again = found(tmp_path, scheduler)
    assert again.state == "cancelled"
    assert control.cancel(again, scheduler.of) == "air: is cancelled already"


def test_a_job_of_which_nothing_is_known_is_cancelled_too(tmp_path: Path, scheduler: MadeScheduler) -> None:
    made_job(tmp_path)
    said = control.cancel(found(tmp_path, scheduler), scheduler.of)
    assert scheduler.cancelled == ["17"]
    assert "whether it still ran is not known (slurm does not know it any more)" in said


def test_a_cancellation_counts_for_its_submission(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    assert not is_cancelled(job)
    Cancelling().note(job, job.read_submissions()[0])
    job.event("note", "the word cancelled")
    assert is_cancelled(job)
    job.add_submission(Submission(id="18", launcher="slurm", time=at(5), again=True))
    assert not is_cancelled(job)


@pytest.mark.parametrize("state", [State.WAITING, State.HELD, State.RUNNING, State.SUSPENDED, State.ENDING])
def test_a_job_that_lives_is_not_submitted_again(tmp_path: Path, scheduler: MadeScheduler, state: State) -> None:
    made_job(tmp_path).script.write_text("exit\n")
    scheduler.know("17", state)
    with pytest.raises(LaunchError, match=r"air: is \w+ \(17\); .*glmforge jobs cancel air"):
        control.resubmit(found(tmp_path, scheduler), scheduler.of, force=True)
    assert scheduler.submitted == []


def test_a_job_that_has_ended_is_submitted_again(tmp_path: Path, scheduler: MadeScheduler) -> None:
    job = made_job(tmp_path)
    job.script.write_text("exit\n")
    made_attempt(job, cause=Cause.CODE)
    scheduler.know("17", State.FAILED)
    done = control.resubmit(found(tmp_path, scheduler), scheduler.of)
    submission = done.submission
    assert (submission.id, submission.again) == ("1001", True)
    assert done.warnings == []
    assert job.read_submissions()[-1] == submission
    assert found(tmp_path, scheduler).state == "waiting"


@pytest.mark.parametrize(("state", "reason"), [(State.FAILED, ""), (State.HELD, "launch failed requeued held")])
def test_a_job_whose_start_was_refused_keeps_its_number(
    tmp_path: Path, scheduler: MadeScheduler, state: State, reason: str
) -> None:
    """And what waits for it goes on waiting."""
    job = made_job(tmp_path)
    scheduler.know("17", state, reason=reason)
    refused = found(tmp_path, scheduler)
    assert refused.state == ("failed" if state is State.FAILED else "held")
    assert "Slurm" in refused.why
    assert next_command(refused) == "glmforge jobs resubmit air"
    done = control.resubmit(refused, scheduler.of)
    assert done.submission.id == "17"
    assert (scheduler.again_, scheduler.submitted) == (["17"], [])
    assert "submitted again" in [event["event"] for event in job.read_events()]
    told = [event["detail"] for event in job.read_events() if event["event"] == "waits in vain"]
    assert done.warnings == told


def test_a_task_of_an_array_that_failed_is_submitted_anew(tmp_path: Path, scheduler: MadeScheduler) -> None:
    """Whether its script ran, nobody knows."""
    job = made_job(tmp_path, submission="12_3")
    job.script.write_text("exit\n")
    scheduler.know("12_3", State.FAILED, reason="NonZeroExitCode")
    failed = found(tmp_path, scheduler)
    assert failed.state == "failed"
    assert "refused" not in failed.why
    assert control.resubmit(failed, scheduler.of).submission.id == "1001"
    assert scheduler.again_ == []


@pytest.mark.parametrize("reason", ["", "launch failed requeued held"])
def test_a_cancelled_job_that_is_brought_back_is_cancelled_no_more(
    tmp_path: Path, scheduler: MadeScheduler, reason: str
) -> None:
    """Else its supervisor would stop at once; until it is back, it stays cancelled."""
    job = made_job(tmp_path)
    Cancelling().note(job, job.read_submissions()[0])
    scheduler.know("17", State.HELD if reason else State.FAILED, reason=reason)
    refused = found(tmp_path, scheduler)
    scheduler.broken = "scontrol: Access/permission denied"
    with pytest.raises(LaunchError, match="permission denied"):
        control.resubmit(refused, scheduler.of)
    assert is_cancelled(job)
    scheduler.broken = None
    control.resubmit(refused, scheduler.of)
    assert not is_cancelled(job)
    Cancelling().note(job, job.read_submissions()[0])
    assert is_cancelled(job)


def test_a_job_that_is_back_but_cannot_be_noted(
    tmp_path: Path, scheduler: MadeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RunFileError("events.jsonl: cannot be written (No space left on device)")

    made_job(tmp_path)
    scheduler.know("17", State.FAILED)
    refused = found(tmp_path, scheduler)
    monkeypatch.setattr(JobDirectory, "event", full)
    with pytest.raises(LaunchError, match=r"17 is in the queue again, but that could not be noted: .*No space left"):
        control.resubmit(refused, scheduler.of)


def test_a_refused_job_that_its_scheduler_has_forgotten_is_submitted_anew(
    tmp_path: Path, scheduler: MadeScheduler
) -> None:
    made_job(tmp_path).script.write_text("exit\n")
    scheduler.know("17", State.FAILED)
    scheduler.remembers = False
    assert control.resubmit(found(tmp_path, scheduler), scheduler.of).submission.id == "1001"


def test_a_start_that_was_not_refused(tmp_path: Path, scheduler: MadeScheduler) -> None:
    """The supervisor began, and its record of an attempt has been lost."""
    job = made_job(tmp_path)
    job.script.write_text("exit\n")
    job.event("supervisor started", submission="17", restart=0)
    scheduler.know("17", State.FAILED)
    assert control.resubmit(found(tmp_path, scheduler), scheduler.of).submission.id == "1001"


def test_who_cannot_tell_is_asked_to_say_so(tmp_path: Path, scheduler: MadeScheduler) -> None:
    made_job(tmp_path).script.write_text("exit\n")
    with pytest.raises(LaunchError, match="give --force"):
        control.resubmit(found(tmp_path, scheduler), scheduler.of)
    assert control.resubmit(found(tmp_path, scheduler), scheduler.of, force=True).submission.id == "1001"


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
