"""What ranks see of their machine in a container."""

from dataclasses import replace
from pathlib import Path

import pytest

from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.starters import srun
from glmforge_ops.jobs.starters.running import write_assignment
from helpers.ranks import ranks_of


def test_apptainer_binds_the_whole_directory_of_the_job(tmp_path: Path) -> None:
    """The command names run.yaml, which lies beside the attempts."""
    job = JobDirectory(tmp_path / "jobs" / "air")
    attempt = job.attempt(1)
    attempt.root.mkdir(parents=True)
    ranks = ranks_of(attempt, ["python", "train.py"], ["me"])
    write_assignment(replace(ranks, container="docker://a/b", gpus_per_node=0))
    command = Assignment.read(attempt.root).command
    assert command[-3:] == ["docker://a/b", "python", "train.py"]
    bound = [command[place + 1] for place, word in enumerate(command) if word == "--bind"]
    assert bound == [str(ranks.cwd.absolute()), str(job.root), "/dev/shm"]
    assert "--nv" not in command


@pytest.mark.parametrize(
    ("image", "plugin", "by_srun"), [("a/b", True, True), ("a.sif", True, False), ("a/b", False, False)]
)
def test_srun_starts_the_images_that_its_plugin_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, plugin: bool, by_srun: bool
) -> None:
    monkeypatch.setattr(srun, "_has_containers", lambda: plugin)
    job = JobDirectory(tmp_path / "jobs" / "air")
    ranks = replace(ranks_of(job.attempt(1), ["python"], ["me"]), container=image)
    options = srun.container_options(ranks)
    if not by_srun:
        assert options == []
        return
    cwd = ranks.cwd.absolute()
    mounts = ",".join(f"{place}:{place}" for place in (cwd, job.root, "/dev/shm"))
    assert options == [f"--container-image={image}", f"--container-mounts={mounts}", f"--container-workdir={cwd}"]
