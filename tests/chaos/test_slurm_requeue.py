"""How soon a requeued job may start again under a real Slurm, and how one that was started too soon is brought back.

A requeue makes the job's credentials invalid on its nodes, with the controller's time in whole seconds. A node refuses
a start whose credential is not of a later second, and Slurm counts the job as failed, for good. By itself Slurm waits
two minutes before it starts a requeued job; whoever may change the job's StartTime can take that away.
"""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from helpers.dev_cluster import Cluster, ControllersClock, controllers_clock, slurm_cluster

pytestmark = pytest.mark.chaos

LIMIT_S = 120.0
SCRIPT = 'echo start ${SLURM_RESTART_COUNT:-0}; test -e "$0.end" || exec sleep 1000'
LEAST_WAIT_S = 100.0
"""Slurm waits `cred_expire` (120 s) and a second; times are whole seconds, and some pass before the test looks."""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllersClock]:
    with controllers_clock(tmp_path_factory.mktemp("clock")) as clock:
        yield clock


@pytest.fixture(scope="module")
def cluster(clock: ControllersClock) -> Iterator[Cluster]:
    with slurm_cluster(grace_time_s=0) as cluster:
        yield cluster


class Sleeper:
    """A job that runs until `end` is called, and writes which of its starts that was."""

    def __init__(self, cluster: Cluster, directory: Path, *options: str) -> None:
        self.cluster, self.directory = cluster, directory
        ends = SCRIPT.replace('"$0.end"', str(directory / "end"))
        common = ["--requeue", "--open-mode=append", f"--output={directory}/log", f"--chdir={directory}"]
        self.number = cluster.submit([*common, *options, f"--wrap={ends}"])

    def wait_for_start(self, start: int) -> None:
        self.wait_until(lambda: f"start {start}" in self.log)

    def wait_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < deadline, f"{self.facts}\n{self.log}"
            time.sleep(0.05)  # looks at what other processes have done; the outcome does not depend on it

    def wait_for(self, state: str) -> dict[str, str]:
        self.wait_until(lambda: self.facts["JobState"] == state)
        return self.facts

    def control(self, *arguments: str, **environment: str) -> None:
        self.cluster.run("scontrol", *arguments, environment=environment)

    def start_at(self, when: str, **environment: str) -> None:
        self.control("update", f"JobId={self.number}", f"StartTime={when}", **environment)

    def end(self) -> None:
        (self.directory / "end").touch()

    @property
    def facts(self) -> dict[str, str]:
        return self.cluster.job(self.number)

    @property
    def log(self) -> str:
        file = self.directory / "log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Sleeper]:
    job = Sleeper(cluster, tmp_path)
    yield job
    cluster.run("scancel", "--quiet", job.number)


def start_in_the_second_of_its_requeue(job: Sleeper, clock: ControllersClock) -> dict[str, str]:
    """What Slurm then says of the job; its next start would be its second."""
    job.wait_for_start(0)
    steps = clock.stay()
    try:
        next(steps)
        job.control("requeue", job.number)
        job.wait_until(lambda: next(steps, 0) is None and job.facts["JobState"] == "PENDING")
        job.start_at("now", **clock.environment)
        job.wait_until(lambda: next(steps, 0) is None and job.facts["JobState"] == "FAILED")
        return job.facts
    finally:
        clock.go_on()


def test_one_started_too_soon_has_failed_until_it_is_requeued(job: Sleeper, clock: ControllersClock) -> None:
    found = start_in_the_second_of_its_requeue(job, clock)
    assert (found["ExitCode"], found["Restarts"], found["Reason"]) == ("1:0", "1", "NonZeroExitCode")
    job.wait_until(lambda: job.facts["EndTime"] == found["StartTime"])  # Slurm tells it when the time has come
    assert "start 1" not in job.log
    said = next(job.cluster.directory.rglob("*slurmctld.log")).read_text()
    assert f"Killing non-startable batch JobId={job.number}: Job credential revoked" in said

    job.control("requeue", job.number)
    job.wait_for("PENDING")
    job.start_at("now+2")
    job.wait_for_start(2)
    job.end()
    job.control("requeue", job.number)
    job.wait_for("PENDING")
    job.start_at("now+2")
    assert job.wait_for("COMPLETED")["ExitCode"] == "0:0"


def test_a_job_that_waits_for_its_failure_brings_it_back(job: Sleeper, clock: ControllersClock) -> None:
    """Without anybody who watches; jobs that wait for its success have to be told again that they do."""
    options = ["--output=/dev/null", f"--chdir={job.directory}"]
    rescue = job.cluster.submit([f"--dependency=afternotok:{job.number}", *options,
                                 f"--wrap=scontrol requeue {job.number}"])  # fmt: skip
    follower = job.cluster.submit([f"--dependency=afterok:{job.number}", *options, "--wrap=true"])
    start_in_the_second_of_its_requeue(job, clock)
    job.end()
    job.wait_until(lambda: job.cluster.job(rescue)["JobState"] == "COMPLETED")
    job.wait_for("PENDING")
    job.start_at("now+2")
    job.wait_for("COMPLETED")
    assert "start 2" in job.log
    assert job.cluster.job(follower)["Reason"] == "DependencyNeverSatisfied"
    job.control("update", f"JobId={follower}", f"Dependency=afterok:{job.number}")
    job.wait_until(lambda: job.cluster.job(follower)["JobState"] == "COMPLETED")


@pytest.mark.parametrize("way", ["requeue", "requeuehold", "preempted", "node down"])
def test_slurm_itself_waits_long_enough(job: Sleeper, way: str) -> None:
    job.wait_for_start(0)
    requeued_at = time.time()
    if way == "preempted":
        urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"]
        job.cluster.wait(job.cluster.submit(urgent), LIMIT_S)
    elif way == "node down":
        node = job.facts["BatchHost"]
        job.control("update", f"NodeName={node}", "State=DOWN", "Reason=test")
    else:
        job.control(way, job.number)
    found = job.wait_for("PENDING")
    if way == "requeuehold":
        assert found["Priority"] == "0"
        job.control("release", job.number)
    eligible = datetime.fromisoformat(job.facts["EligibleTime"]).timestamp()
    assert eligible - requeued_at > LEAST_WAIT_S


def test_two_seconds_are_long_enough(job: Sleeper) -> None:
    for start in range(5):
        job.wait_for_start(start)
        job.control("requeue", job.number)
        job.wait_for("PENDING")
        job.start_at("now+2")
    job.wait_for_start(5)
