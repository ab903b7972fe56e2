"""Jobs written, and removed again if nobody took them."""

import os
import shutil
from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.job import JobDirectory, removed_on_error
from glmforge_ops.jobs.submit.new_job import NewJob, command_job


@pytest.fixture
def job(tmp_path: Path) -> NewJob:
    """Written."""
    new = command_job(JobDirectory(tmp_path / "air"), ["true"], LaunchConfig(launcher="slurm"))
    new.write()
    return new


def test_one_that_is_refused_does_not_stay(job: NewJob) -> None:
    with pytest.raises(LaunchError, match=r"^no$"), job.removed_if_refused():
        raise LaunchError("no")
    assert not job.directory.root.exists()


def test_what_cannot_be_removed_does_not_hide_why_it_was_refused(job: NewJob, monkeypatch: pytest.MonkeyPatch) -> None:
    busy(monkeypatch)
    with pytest.raises(LaunchError, match=r"^no$"), job.removed_if_refused():
        raise LaunchError("no")
    with pytest.raises(LaunchError, match=r"^no$"), removed_on_error() as made:
        refuse(made, job)


def test_what_is_known_of_an_interrupted_submission_is_told(job: NewJob) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"^slurm 7 was not noted, and goes on$"), job.removed_if_refused():
        raise KeyboardInterrupt("slurm 7 was not noted, and goes on")
    told = r"^'glmforge jobs resubmit air' submits air, if it was not yet$"
    with pytest.raises(KeyboardInterrupt, match=told), job.removed_if_refused():
        raise KeyboardInterrupt
    assert job.directory.script.exists()


def refuse(made: list[Path], job: NewJob) -> None:
    made.append(job.directory.root)
    raise LaunchError("no")


def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be removed, as on NFS while a file of it is open."""

    def fail(path: object, *_: object, **__: object) -> None:
        raise OSError(39, "Directory not empty", str(path))

    assert shutil.rmtree.avoids_symlink_attacks, "else it calls other functions"
    monkeypatch.setattr(os, "rmdir", fail)
