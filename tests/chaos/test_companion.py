"""A launched job whose start Slurm refuses: its companion brings it back, and is gone when the job has ended.

Here the log of the job cannot be opened, as on a node without its storage: the node refuses the start, and Slurm counts
the job as failed, as it does for a revoked credential (test_slurm_requeue.py).
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.requeue.companion import companions
from helpers.dev_cluster import Cluster, slurm_cluster

pytestmark = pytest.mark.chaos

LIMIT_S = 180.0
PROGRAM = """#!/bin/bash
echo "start ${SLURM_RESTART_COUNT:-0}" >>"$0.starts"
until test -e "$0.end"; do sleep 0.2; done
exit "$(cat "$0.end")"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(grace_time_s=0) as cluster:
        yield cluster


class Job:
    """A program that runs until `end` is called, launched with a companion; it may start when `let_start` is called."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        options = ["--output=/dev/null", f"--chdir={directory}", "--mem=100"]
        self.blocker = cluster.submit([*options, "--wrap=exec sleep 1000"])
        self.cluster, self.program, self.work = cluster, directory / "waits", directory / "work"
        self.work.mkdir()
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        self.jobs = directory / "jobs"
        self.glmforge("launch", "--script", str(self.program), "--launcher", "slurm", "--no-check",
                      "--dependency", f"afterany:{self.blocker}")  # fmt: skip
        self.files = JobDirectory(self.jobs / "waits")
        self.number = self.files.read_submissions()[-1].id

    def glmforge(self, *words: str) -> str:
        environment = os.environ | self.cluster.environment | {"GLMFORGE_JOBS": str(self.jobs)}
        command = [sys.executable, "-m", "glmforge", *words]
        done = subprocess.run(command, env=environment, cwd=self.work, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_until(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < deadline, f"{self.facts}\n{self.files.read_events()}\n{self.said()}"
            time.sleep(0.05)  # looks at what other processes have done; the outcome does not depend on it

    def said(self) -> str:
        return "\n".join(log.read_text() for log in self.files.root.glob("*.log") if log.is_file())

    @property
    def facts(self) -> dict[str, str]:
        return self.cluster.job(self.number)

    @property
    def events(self) -> list[str]:
        return [event["event"] for event in self.files.read_events()]

    def has_started(self, start: int) -> bool:
        starts = Path(f"{self.program}.starts")
        return starts.exists() and f"start {start}\n" in starts.read_text()

    def start_soon(self) -> None:
        self.cluster.run("scontrol", "update", f"JobId={self.number}", "StartTime=now+2")

    def let_start(self) -> None:
        self.cluster.run("scancel", self.blocker)

    @property
    def log(self) -> Path:
        return self.files.root / f"scheduler-{self.number}.log"

    def end(self, status: int) -> None:
        Path(f"{self.program}.new").write_text(f"{status}")
        Path(f"{self.program}.new").rename(f"{self.program}.end")

    def companions_wait(self) -> bool:
        """In Slurm's queue, or run."""
        return bool(self.cluster.run("squeue", "--noheader", f"--name={self.files.name}.companion").strip())


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Job]:
    job = Job(cluster, tmp_path)
    yield job
    cluster.run("scancel", "--quiet", job.number, job.blocker, *companions(job.files).values())
    job.wait_until(lambda: job.facts["JobState"] not in ("RUNNING", "COMPLETING", "PENDING"))


def test_it_is_brought_back_under_its_number(job: Job) -> None:
    job.log.mkdir()
    job.let_start()
    job.wait_until(lambda: "start refused" in job.events)
    job.wait_until(lambda: job.facts["JobState"] == "PENDING")
    job.log.rmdir()
    job.start_soon()
    job.wait_until(lambda: job.has_started(1))
    assert not job.has_started(0)
    assert job.companions_wait()
    job.end(0)
    job.wait_until(lambda: job.facts["JobState"] == "COMPLETED")
    job.wait_until(lambda: not job.companions_wait())
    assert job.events.count("start refused") == 1


def test_by_hand_it_is_brought_back_as_well(job: Job) -> None:
    job.cluster.run("scancel", *companions(job.files).values())
    job.log.mkdir()
    job.let_start()
    job.wait_until(lambda: job.facts["JobState"] == "FAILED")
    assert "Slurm refused this start" in job.glmforge("jobs", "show", "waits")
    job.log.rmdir()
    job.glmforge("jobs", "resubmit", "waits")
    assert job.number == job.files.read_submissions()[-1].id
    job.start_soon()
    job.wait_until(lambda: job.has_started(1))


@pytest.mark.parametrize("way", ["scancel", "jobs cancel", "its code fails"])
def test_a_job_that_has_earned_its_end_stays_so(job: Job, way: str) -> None:
    job.let_start()
    job.wait_until(lambda: job.has_started(0))
    if way == "scancel":
        job.cluster.run("scancel", job.number)
    elif way == "jobs cancel":
        job.glmforge("jobs", "cancel", "waits")
    else:
        job.end(3)
    job.wait_until(lambda: job.facts["JobState"] == ("FAILED" if "code" in way else "CANCELLED"))
    job.wait_until(lambda: not job.companions_wait())
    assert "start refused" not in job.events
    assert job.facts["JobState"] in ("FAILED", "CANCELLED")


def test_a_job_whose_script_ran_in_vain_stays_so(job: Job) -> None:
    """No supervisor of it began: its directory is gone."""
    job.work.rmdir()
    job.let_start()
    job.wait_until(lambda: job.facts["JobState"] == "FAILED")
    job.wait_until(lambda: not job.companions_wait())
    assert "supervisor started" not in job.events
    assert "start refused" not in job.events
    assert (job.facts["JobState"], job.facts["Restarts"]) == ("FAILED", "0")
