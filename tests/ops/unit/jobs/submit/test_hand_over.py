"""Jobs handed over: nothing is left running that nobody has noted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.errors import ConfigError, GlmforgeError, LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.schedulers.commands import NoAnswerError
from glmforge_ops.jobs.submit.hand_over import MayRunError, hand_over, id_of_task, submit
from helpers.fake_scheduler import FakeScheduler
from helpers.made_jobs import made_job


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    """Not submitted yet."""
    job = made_job(tmp_path, submission=None)
    job.script.write_text("#!/bin/bash\n")
    return job


def test_it_is_noted_in_the_jobs_of_tasks_too(tmp_path: Path, job: JobDirectory, scheduler: FakeScheduler) -> None:
    task = made_job(tmp_path, "air-3", submission=None, task=3)
    submission = hand_over(job, scheduler=scheduler, tasks=[task], again=True)
    assert (submission.id, submission.launcher, submission.again) == ("1", "slurm", True)
    assert job.read_submissions() == [submission]
    assert [each.id for each in task.read_submissions()] == ["1_3"]
    assert job.read_events()[-1]["submission"] == "1"


def test_numbers_of_tasks() -> None:
    assert id_of_task("12", 3) == "12_3"
    assert id_of_task("12[].server", 3) == "12[3].server"


def test_what_it_waits_for_is_of_the_options_that_are_given(job: JobDirectory, scheduler: FakeScheduler) -> None:
    launch = job.read().launch.model_copy(update={"dependency": "afterok:7"})
    hand_over(job, launch=launch, scheduler=scheduler)
    assert scheduler.after == {"1": ("7",)}


def test_a_damaged_task_is_found_before_anything_is_submitted(
    tmp_path: Path, job: JobDirectory, scheduler: FakeScheduler
) -> None:
    task = made_job(tmp_path, "air-3", submission=None, task=3)
    task.description.write_text("name: [")
    with pytest.raises(ConfigError):
        hand_over(job, scheduler=scheduler, tasks=[task])
    assert scheduler.scripts == {}
    assert job.read_submissions() == []


@pytest.mark.parametrize("why", [RunFileError("full"), LaunchError("damaged"), OSError(28, "No space left on device")])
def test_what_cannot_be_noted_is_cancelled(job: JobDirectory, scheduler: FakeScheduler, why: Exception) -> None:
    with pytest.raises(LaunchError, match=r"^slurm 1 was cancelled, since it could not be noted: ") as error:
        submit(scheduler, job, job.read().launch, fails(why))
    assert not isinstance(error.value, MayRunError)
    assert scheduler.cancelled == ["1"]


def test_what_can_neither_be_noted_nor_cancelled_may_run(job: JobDirectory, scheduler: FakeScheduler) -> None:
    scheduler.cancel = fails(LaunchError("no"))  # type: ignore[method-assign]
    with pytest.raises(MayRunError, match=r"^slurm 1 could not be noted, and goes on \(no\): full"):
        submit(scheduler, job, job.read().launch, fails(RunFileError("full")))


def test_what_is_interrupted_while_it_is_noted_is_cancelled(job: JobDirectory, scheduler: FakeScheduler) -> None:
    with pytest.raises(
        KeyboardInterrupt, match=r"^slurm 1 was cancelled; 'glmforge jobs resubmit air' submits it again$"
    ):
        submit(scheduler, job, job.read().launch, fails(KeyboardInterrupt()))
    assert scheduler.cancelled == ["1"]
    scheduler.cancel = fails(LaunchError("no"))  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt, match=r"^slurm 2 was not noted, and goes on \(no\)$"):
        submit(scheduler, job, job.read().launch, fails(KeyboardInterrupt()))


@pytest.mark.parametrize(
    ("why", "error", "told"),
    [
        (
            NoAnswerError("sbatch: no answer"),
            MayRunError,
            r"^air: may have been submitted, or not: sbatch: no answer; look with 'squeue --me --name=air'; if it "
            r"is not there, 'glmforge jobs resubmit air'$",
        ),
        (
            OSError(28, "No space left on device", "a.log"),
            LaunchError,
            r"^air: cannot be started \(a.log: No space left on device\); nothing was submitted",
        ),
        (LaunchError("sbatch: no"), LaunchError, "^sbatch: no$"),
    ],
)
def test_a_submission_that_fails(
    job: JobDirectory, scheduler: FakeScheduler, why: Exception, error: type[GlmforgeError], told: str
) -> None:
    scheduler.submit = fails(why)  # type: ignore[method-assign]
    with pytest.raises(GlmforgeError, match=told) as raised:
        hand_over(job, scheduler=scheduler)
    assert type(raised.value) is error
    assert job.read_submissions() == []


def test_interrupted_before_there_is_an_answer(job: JobDirectory, scheduler: FakeScheduler) -> None:
    scheduler.submit = fails(KeyboardInterrupt())  # type: ignore[method-assign]
    told = (
        r"^whether air was submitted is not known; look with 'squeue --me --name=air'; if it is not there, 'do this'$"
    )
    with pytest.raises(KeyboardInterrupt, match=told):
        hand_over(job, scheduler=scheduler, mend="do this")


def test_interrupted_again_while_it_is_cancelled_it_is_told(job: JobDirectory, scheduler: FakeScheduler) -> None:
    scheduler.cancel = fails(KeyboardInterrupt())  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt, match=r"^slurm 1 was not noted, and goes on \(interrupted\)$"):
        submit(scheduler, job, job.read().launch, fails(KeyboardInterrupt()))


def fails(why: BaseException) -> Callable[..., str]:
    def fail(*_: object) -> str:
        raise why

    return fail
