"""What ranks see of their machine in a container."""

from pathlib import Path

import pytest

from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.starters import srun
from glmforge_ops.jobs.starters.base import write_assignment
from helpers.ranks import assignment


def test_apptainer_binds_the_whole_directory_of_the_job(tmp_path: Path) -> None:
    """The command names run.yaml, which lies beside the attempts."""
    job = JobDirectory(tmp_path / "jobs" / "air")
    attempt = job.attempt(1)
    attempt.root.mkdir(parents=True)
    write_assignment(attempt, assignment(["python", "train.py"], container="docker://a/b"))
    command = Assignment.read(attempt.root).command
    assert command[-3:] == ["docker://a/b", "python", "train.py"]
    bound = [command[place + 1] for place, word in enumerate(command) if word == "--bind"]
    assert bound == ["/", str(job.root), "/dev/shm"]
    assert "--nv" not in command


@pytest.mark.parametrize(
    ("image", "plugin", "by_srun"), [("a/b", True, True), ("a.sif", True, False), ("a/b", False, False)]
)
def test_srun_starts_the_images_that_its_plugin_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, plugin: bool, by_srun: bool
) -> None:
    monkeypatch.setattr(srun, "_has_containers", lambda: plugin)
    job = JobDirectory(tmp_path / "jobs" / "air")
    options = srun._container_options(job.attempt(1), assignment(["python"], container=image))
    if not by_srun:
        assert options == []
        return
    mounts = ",".join(f"{place}:{place}" for place in ("/", job.root, "/dev/shm"))
    assert options == [f"--container-image={image}", f"--container-mounts={mounts}", "--container-workdir=/"]
