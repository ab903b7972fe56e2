"""What the supervisor of a job on a real Slurm decides.

A node that fails three times is out, an error of the job's own ends it, and a node that is drained is no fault.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.dev_cluster import Cluster
from helpers.launched import Launched, launch, launch_cluster, small_run, unharmed
from helpers.tiny_data import TinyData

pytestmark = pytest.mark.chaos

STEPS = 100_000
RANKS = 2
SLURM = ["--launcher", "slurm", "--nodes", "2", "--cpus-per-task", "1"]
STRUCK_AFTER, STEPS_AFTER = 7, 5
FAILURES = 3
"""Of a node before it is out: `supervisor.node_failures`."""

BUG = """
import os, time
for step in range(1, 10):
    with open(os.environ["GLMFORGE_STEP_FILE"], "wb") as file:
        file.write(step.to_bytes(8, "little"))
    print("step", step, flush=True)
    if step == 4 and os.environ["RANK"] == "1":
        {}["the bug"]
    if step == 4:
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with launch_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def start(cluster: Cluster, tiny_data: TinyData, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Launches the run; whatever is left of it is ended."""
    jobs = []

    def start(data: TinyData = tiny_data) -> Launched:
        jobs.append(launch(cluster, tmp_path, small_run(data, tmp_path / "run", STEPS), *SLURM))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def kill_rank_of(job: Launched, node: str) -> None:
    """That which runs there; comes back when the job trains again."""
    attempt = job.attempt
    job.signal_rank(job.nodes.index(node), "KILL")
    told = job.wait_for_training(attempt)
    assert (told["after"], told["cause"]) == (attempt, "machine")


def test_a_node_that_fails_thrice_is_out_until_a_person_takes_it_back(
    cluster: Cluster, start: Callable[..., Launched], tmp_path: Path
) -> None:
    job = start()
    job.wait_for_step(STRUCK_AFTER)
    bad = next(node for node in job.nodes if node != job.batch_node())
    for _ in range(FAILURES):
        assert bad in job.nodes
        kill_rank_of(job, bad)
    # It was out after the third time, and Slurm was asked for another.
    assert job.number == job.files.read_submissions()[0].id
    assert len(job.events("requeued")) == 1
    assert bad not in job.nodes
    (out,) = job.events("node out")
    assert out["node"] == bad
    assert out["reason"].startswith(f"{FAILURES} failures, the last: rank 1 on {bad} failed first: it was killed")
    assert out["reason"] in " ".join(job.glmforge("jobs", "show", job.config.name).split())
    assert cluster.job(job.number)["ExcNodeList"] == bad
    # Taken back, it is used when the next requeue leaves no other.
    job.glmforge("jobs", "allow", job.config.name, bad)
    other = next(node for node in job.nodes if node != job.batch_node())
    attempt = job.attempt
    cluster.dev.fail(other)
    try:
        job.wait_for_training(attempt)
        assert bad in job.nodes
    finally:
        cluster.dev.heal(other)
    losses = job.stop()
    assert losses == unharmed(job.config, tmp_path / "unharmed", RANKS, steps=len(losses))


def test_a_node_that_is_drained_while_it_trains_is_left_only_with_the_allocation(
    cluster: Cluster, start: Callable[..., Launched], tmp_path: Path
) -> None:
    """Slurm gives it no new job; the running one goes on there, even through a failure. A requeue goes elsewhere."""
    job = start()
    job.wait_for_step(STRUCK_AFTER)
    drained = next(node for node in job.nodes if node != job.batch_node())
    cluster.run("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
    try:
        job.wait_for_step(job.step + STEPS_AFTER)
        assert job.attempt == 1
        kill_rank_of(job, drained)
        assert drained in job.nodes
        attempt = job.attempt
        cluster.run("scancel", "--batch", "--signal=USR1", job.number)  # as Slurm warns of a preemption
        job.wait_for_training(attempt)
        assert drained not in job.nodes
    finally:
        cluster.run("scontrol", "update", f"NodeName={drained}", "State=RESUME")
    losses = job.stop()
    assert losses == unharmed(job.config, tmp_path / "unharmed", RANKS, steps=len(losses))


def ends_at_the_second_attempt(job: Launched, *parts: str) -> None:
    """Because of an error of its own, in whose words these parts are."""
    try:
        job.wait_until(job.is_over)
        job.wait_until_gone()
    finally:
        job.end()
    assert job.causes() == ["unknown", "code"]
    said = job.events("decided")[-1]["why"]
    for part in ("as in attempt 1, so it is the job's own", *parts, "mend it, then 'glmforge jobs resubmit'"):
        assert part in said
    assert job.cluster.job(job.number)["JobState"] == "FAILED"
    shown = job.glmforge("jobs", "show", job.config.name)
    assert parts[-1] in shown


def test_a_bug_of_a_script_ends_the_job(cluster: Cluster, tiny_data: TinyData, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BUG)
    job = Launched(cluster, tmp_path, small_run(tiny_data, tmp_path / "run", STEPS))
    job.glmforge("launch", "--script", str(script), "--name", job.config.name, "--no-check", *SLURM)
    ends_at_the_second_attempt(job, "the same error after step 4", "train.py, line 8", "KeyError: 'the bug'")


def test_a_bug_of_a_training_run_ends_the_job(
    start: Callable[..., Launched], tiny_data: TinyData, tmp_path: Path
) -> None:
    """Data in which there are tokens that the model does not know: every start meets them at the same step."""
    train = Path(shutil.copytree(tiny_data.train.parent, tmp_path / "data")) / tiny_data.train.name
    with train.with_suffix(".bin").open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for part in range(64):
            file.seek(size * part // 128 * 2)
            file.write(b"\xff\xff" * 8)
    job = start(data=replace(tiny_data, train=train))
    ends_at_the_second_attempt(job, "the same error")
