"""Jobs submitted: nothing is left running that nobody has noted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import ConfigError, GlmforgeError, LaunchError
from glmforge.observe.job_records import JobDirectory
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.new_job import command_job, create_job
from glmforge_ops.jobs.schedulers.base import NoAnswerError
from glmforge_ops.jobs.submit import MayRunError, id_of_task, submit, submit_noted
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


def noted(job: JobDirectory, scheduler: FakeScheduler, why: BaseException) -> None:
    """Submit, where the note fails."""
    submit_noted(scheduler, job, job.read().launch, fails(why))


def test_it_is_noted_in_the_jobs_of_tasks_too(tmp_path: Path, job: JobDirectory, scheduler: FakeScheduler) -> None:
    task = made_job(tmp_path, "air-3", submission=None, task=3)
    submission = submit(job, scheduler=scheduler, tasks=[task], after=["7"])
    assert (submission.id, submission.launcher) == ("1", "slurm")
    assert job.read_submissions() == [submission]
    assert [each.id for each in task.read_submissions()] == ["1_3"]
    assert job.read_events()[-1]["submission"] == "1"
    assert scheduler.after == {"1": ("7",)}
    assert id_of_task("12[].server", 3) == "12[3].server"


def test_a_damaged_task_is_found_before_anything_is_submitted(
    tmp_path: Path, job: JobDirectory, scheduler: FakeScheduler
) -> None:
    task = made_job(tmp_path, "air-3", submission=None, task=3)
    task.description.write_text("name: [")
    with pytest.raises(ConfigError):
        submit(job, scheduler=scheduler, tasks=[task])
    assert scheduler.scripts == {}
    assert job.read_submissions() == []


@pytest.mark.parametrize("why", [RunFileError("full"), OSError(28, "No space left on device")])
def test_what_cannot_be_noted_is_cancelled(job: JobDirectory, scheduler: FakeScheduler, why: Exception) -> None:
    with pytest.raises(LaunchError, match=r"^slurm 1 was cancelled, since it could not be noted: ") as error:
        noted(job, scheduler, why)
    assert not isinstance(error.value, MayRunError)
    with pytest.raises(KeyboardInterrupt):
        noted(job, scheduler, KeyboardInterrupt())
    assert scheduler.cancelled == ["1", "2"]


def test_what_can_neither_be_noted_nor_cancelled_may_run(job: JobDirectory, scheduler: FakeScheduler) -> None:
    scheduler.cancel = fails(LaunchError("no"))  # type: ignore[method-assign]
    with pytest.raises(MayRunError, match=r"^slurm 1 could not be noted, and runs \(no\): full"):
        noted(job, scheduler, RunFileError("full"))


@pytest.mark.parametrize(
    ("why", "error", "told"),
    [
        (
            NoAnswerError("sbatch: no answer"),
            MayRunError,
            r"^air: may have been submitted, or not: sbatch: no answer; look with 'squeue --me --name=air'$",
        ),
        (
            OSError(28, "No space left on device", "a.log"),
            LaunchError,
            r"^air: cannot be started \(.*No space left on device.*\); nothing was submitted",
        ),
        (LaunchError("sbatch: no"), LaunchError, "^sbatch: no$"),
    ],
)
def test_a_submission_that_fails(
    job: JobDirectory, scheduler: FakeScheduler, why: Exception, error: type[GlmforgeError], told: str
) -> None:
    scheduler.submit = fails(why)  # type: ignore[method-assign]
    with pytest.raises(GlmforgeError, match=told) as raised:
        submit(job, scheduler=scheduler)
    assert type(raised.value) is error
    assert job.read_submissions() == []


def test_of_a_job_that_cannot_be_written_nothing_stays(tmp_path: Path) -> None:
    new = command_job(JobDirectory(tmp_path / "air"), ["true"], LaunchConfig(launcher="slurm"))
    new.write()
    with pytest.raises(LaunchError, match=r"jobs/air|air: the name is taken; .*'glmforge jobs resubmit air'"):
        new.write()
    assert new.directory.script.exists()
    new.remove()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"file: cannot hold jobs .*; choose another --jobs-dir"):
        create_job(JobDirectory(tmp_path / "file" / "air"), new.description, "taken")


def fails(why: BaseException) -> Callable[..., str]:
    def fail(*_: object, **__: object) -> str:
        raise why

    return fail
