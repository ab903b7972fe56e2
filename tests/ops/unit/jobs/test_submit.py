"""Jobs submitted: nothing is left running that nobody has noted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.observe.job_records import JobDirectory
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.new_job import command_job, create_job, make_task
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


def test_it_is_noted(job: JobDirectory, scheduler: FakeScheduler) -> None:
    submission = submit(job, scheduler=scheduler, after=["7"])
    assert (submission.id, submission.launcher) == ("1", "slurm")
    assert job.read_submissions() == [submission]
    assert job.read_events()[-1]["submission"] == "1"
    assert scheduler.after == {"1": ("7",)}


def test_the_task_of_an_array_is_a_job_from_its_first_start_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    made_job(tmp_path, "x", launch={"array": "1-5:2"})
    task = JobDirectory(tmp_path / "x-3")
    for _ in range(2):  # once more after a requeue
        make_task(task)
    described = task.read()
    assert (described.part_of, described.task, described.launch.array) == ("x", 3, None)
    assert described.launch.env == {"SLURM_ARRAY_TASK_ID": "3"}
    assert [submission.id for submission in task.read_submissions()] == ["17_3"]
    assert f"supervise {task.root}\n" in task.script.read_text()  # it can be submitted again alone
    assert id_of_task("12[].server", 3) == "12[3].server"


def test_a_task_is_no_other_job(tmp_path: Path) -> None:
    made_job(tmp_path, "x", launch={"array": "1-5"})
    made_job(tmp_path, "x-2")
    with pytest.raises(LaunchError, match="x-2: is another job; launch the array under another --name"):
        make_task(JobDirectory(tmp_path / "x-2"))
    for name in ("y-1", "y"):
        make_task(JobDirectory(tmp_path / name))
        assert not (tmp_path / name).exists()


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
