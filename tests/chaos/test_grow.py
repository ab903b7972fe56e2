"""A job that lost a node goes on smaller, and grows again: within its allocation, and beyond it.

The layout changes on the way, and with it the order of sums: losses are equal to 1e-5, and every step is there once.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.dev_cluster import Cluster
from helpers.launched import LIMIT_S, Launched, launch, launch_cluster, small_run, unharmed
from helpers.tiny_data import TinyData

pytestmark = pytest.mark.chaos

STEPS, STEPS_EACH = 100_000, 5
SIZE = ["--launcher", "slurm", "--nodes", "2", "--min-nodes", "1", "--max-nodes", "2", "--cpus-per-task", "1"]
TOLERANCE = 1e-5
"""Relative: gradients of one rank or of two are sums in another order, in float32."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with launch_cluster(tmp_path_factory.mktemp("slurm"), nodes=2) as cluster:
        yield cluster


@pytest.fixture
def start(cluster: Cluster, tiny_data: TinyData, tmp_path: Path) -> Iterator[Callable[[str], Launched]]:
    """Launches a job whose supervisor has these options."""
    jobs = []

    def start(supervisor: str) -> Launched:
        options = tmp_path / "options.yaml"
        options.write_text(f"supervisor: {{{supervisor}}}\n")
        wait_for_idle_nodes(cluster, 2)  # Slurm gives what there is
        config = small_run(tiny_data, tmp_path / "run", STEPS)
        jobs.append(launch(cluster, tmp_path, config, *SIZE, "--options", str(options)))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def wait_for_idle_nodes(cluster: Cluster, number: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    idle = ["--noheader", "--Node", "--responding", "--states=idle", "--partition=main", "--format=%N"]
    while len(cluster.run("sinfo", *idle).split()) < number:
        assert time.monotonic() < deadline
        time.sleep(0.2)  # looks at what Slurm has done; the outcome does not depend on it


def trains_on(job: Launched, nodes: int, after: int) -> int:
    """The attempt that trains on so many nodes, some steps long, after attempt `after`."""
    job.wait_until(lambda: job.attempt > after and len(job.nodes) == nodes and bool(job.events("training")))
    attempt = job.attempt
    job.wait_until(lambda: job.events("training")[-1]["attempt"] == attempt)
    job.wait_for_step(job.step + STEPS_EACH)
    return attempt


def ends_with_the_losses_of_a_quiet_run(job: Launched, directory: Path) -> None:
    losses = job.stop()
    assert losses == pytest.approx(unharmed(job.config, directory, 2, steps=len(losses)), rel=TOLERANCE)


def test_a_job_grows_beyond_its_allocation(start: Callable[[str], Launched], tmp_path: Path) -> None:
    """Slurm has taken the node from it: it saves and is queued again when the node is idle."""
    job = start("grow_after_s: 5")
    dev = job.cluster.dev
    whole = trains_on(job, 2, 0)
    node = next(node for node in job.nodes if node != job.batch_node())
    dev.fail(node)
    small = trains_on(job, 1, whole)
    assert not job.events("grows")
    dev.heal(node)
    grown = trains_on(job, 2, small)
    (grew,) = job.events("grows")
    assert (grew["beyond"], grew["have"], grew["to"], grew["nodes"]) == (True, 1, 2, [node])
    assert [event["restart"] for event in job.events("supervisor started")] == [0, 1]
    assert grown == small + 1
    ends_with_the_losses_of_a_quiet_run(job, tmp_path / "unharmed")


def test_a_job_grows_within_its_allocation(start: Callable[[str], Launched], tmp_path: Path) -> None:
    """The supervisor had put the node out, and a person takes it back."""
    job = start("node_failures: 1, node_back_after_s: null, grow_after_s: null")
    whole = trains_on(job, 2, 0)
    node = job.nodes[-1]
    job.signal_rank(1, "KILL")
    small = trains_on(job, 1, whole)
    job.glmforge("jobs", "allow", job.config.name, node)
    trains_on(job, 2, small)
    (grew,) = job.events("grows")
    assert (grew["nodes"], grew.get("beyond")) == ([node], None)
    assert len(job.events("supervisor started")) == 1
    ends_with_the_losses_of_a_quiet_run(job, tmp_path / "unharmed")
