"""`glmforge launch` on a real Slurm, given what cannot be: one line, nothing submitted or written."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from glmforge_ops.dev import DevOptions, development_cluster
from helpers.chaos import small_disk
from helpers.dev_cluster import Cluster, install_slurm_or_skip, short_directory

pytestmark = pytest.mark.chaos

LIMIT_S = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    install_slurm_or_skip()
    options = DevOptions(nodes=2, gpus=2, cpus=4, slurmd_timeout_s=600, mode="plain")
    with short_directory() as directory, development_cluster(directory / "cluster", options) as dev:
        yield Cluster(dev)


@dataclass(frozen=True)
class Said:
    """What a command ended with."""

    status: int
    lines: list[str]


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Starts `glmforge launch` in a directory with a program of the user's; what is left in the queue is cancelled."""
    (tmp_path / "go.py").write_text("print('here')\n")

    def start(*arguments: str, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "glmforge", "launch", *arguments],
            cwd=tmp_path,
            env=cluster.environment | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    yield start
    for job in jobs_in_queue(cluster):
        cluster.run("scancel", "--quiet", job)


def end_of(process: "subprocess.Popen[str]") -> Said:
    output, _ = process.communicate(timeout=LIMIT_S)
    return Said(process.returncode, output.splitlines())


def jobs_in_queue(cluster: Cluster) -> list[str]:
    return cluster.run("squeue", "--noheader", "--format=%i").split()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--partition", "mian"], "partition: Slurm has no 'mian'; did you mean 'main'?"),
        (["--nodes", "3"], "nodes: 3 is more than partition main has: 2"),
        (["--gpus-per-node", "3"], "sbatch rejects this job: Requested node configuration is not available; 'sinfo"),
        (["--constraint", "a&b"], "sbatch rejects this job: Invalid feature specification"),
        (["--exclude", "node9"], "sbatch rejects this job: Invalid node name specified"),
        (["--dependency", "afterok:99999"], "dependency: Slurm does not know job 99999"),
        (["--dependency", "whenever"], "sbatch rejects this job: Job dependency problem"),
        (["--time", "24h"], "options: time: 24h is invalid; write it like 24:00:00 or 2-00:00:00"),
        (["--jobs-dir", "go.py"], "{here}/go.py: cannot hold jobs (File exists); choose another --jobs-dir"),
        (["--jobs-dir", "/proc/jobs"], "/proc/jobs: cannot hold jobs (No such file or directory)"),
    ],
)
def test_what_cannot_be(cluster: Cluster, start: Start, tmp_path: Path, arguments: list[str], told: str) -> None:
    assert_refused(end_of(start("--script", "go.py", *arguments)), told.format(here=tmp_path))
    assert not (tmp_path / "jobs").exists()
    assert jobs_in_queue(cluster) == []


def test_a_mistake_of_the_configuration(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    assert_refused(
        end_of(start("demo", "optim.lrr=1")), "override 'optim.lrr=1': optim.lrr: unknown key; did you mean 'lr'?"
    )
    assert not (tmp_path / "jobs").exists()
    assert jobs_in_queue(cluster) == []


def test_no_slurm_here(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    said = end_of(start("--script", "go.py", "--launcher", "slurm", environment={"PATH": str(tmp_path / "bin")}))
    assert_refused(said, "sinfo: is not on this machine; run this where jobs are submitted, or choose another --lau")
    assert not (tmp_path / "jobs").exists()


def test_of_two_at_once_with_one_name_one_is_submitted(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    both = [start("--script", "go.py", "--name", "one", "--dependency=singleton", "--time=1:00:00") for _ in range(2)]
    first, second = sorted(map(end_of, both), key=lambda said: said.status)
    assert first.status == 0, first
    assert_refused(second, f"{tmp_path}/jobs/one: the name is taken; give another --name, or 'glmforge jobs")
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["one"]
    assert (tmp_path / "jobs/one/submissions.jsonl").read_text().count("\n") == 1


def test_a_disk_that_gets_full(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    """At whatever file: the job is not submitted, or cancelled again; with enough room it is submitted."""
    pages, page = 8, os.sysconf("SC_PAGE_SIZE")
    with small_disk(tmp_path / "small", megabytes=1) as disk:
        if disk is None:
            pytest.skip("a file system of its own cannot be mounted here")
        said = []
        for left in range(pages):
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, (1 << 20) - left * page)
            said.append(end_of(start("--script", "go.py", "--jobs-dir", str(disk / "jobs"), "--time=1:00:00")))
            if said[-1].status == 0:
                break
            assert list((disk / "jobs").rglob("*")) == []
            assert jobs_in_queue(cluster) == []
    *refused, taken = said
    assert taken.status == 0, taken
    for each in refused:
        assert_refused(each, "")
        assert "No space left on device" in each.lines[0]
    assert any("was cancelled, since it could not be noted" in each.lines[0] for each in refused)
    assert any("job.yaml: cannot be written" in each.lines[0] for each in refused)


def assert_refused(said: Said, told: str) -> None:
    """In one line, which begins so."""
    assert said.status == 1, said
    assert len(said.lines) == 1, said
    assert said.lines[0].startswith(f"glmforge: {told}"), said
