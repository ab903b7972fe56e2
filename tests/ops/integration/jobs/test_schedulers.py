"""Schedulers for real: a Slurm of two nodes, asked in its own way and through the commands of PBS."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.schedulers.base import Scheduler, Seen, State
from glmforge_ops.jobs.schedulers.pbs import Pbs
from glmforge_ops.jobs.schedulers.slurm import Slurm
from helpers.dev_cluster import Cluster, slurm_cluster
from helpers.packages import install_or_skip

ROOT = Path(__file__).parents[4]
SCRIPTS = [
    *sorted((ROOT / "tests/ops/unit/jobs/script/golden").glob("slurm*.sh")),
    ROOT / "examples/slurm/pretrain.sbatch",
]
LIMIT_S = 120
SMALL = LaunchConfig(launcher="slurm", nodes=2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as cluster:
        kept = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = cluster.environment["SLURM_CONF"]
        try:
            yield cluster
        finally:
            os.environ.pop("SLURM_CONF")
            if kept is not None:
                os.environ["SLURM_CONF"] = kept


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[Scheduler, str], str]]:
    """Submits a script in a directory with an odd name; what is left of the jobs is cancelled."""
    submitted = []

    def submit(scheduler: Scheduler, script: str) -> str:
        job = JobDirectory(tmp_path / "it's a $(job)")
        job.root.mkdir()
        job.script.write_text(f"#!/bin/bash\n{script}\n")
        submitted.append((scheduler, scheduler.submit(job, SMALL)))
        return submitted[-1][1]

    yield submit
    for scheduler, id_ in submitted:
        scheduler.cancel(id_)


def reach(scheduler: Scheduler, id_: str, *states: State) -> Seen:
    """The job once it is in one of these states."""
    deadline = time.monotonic() + LIMIT_S
    while (seen := scheduler.look([id_])[id_]).state not in states:
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)  # looks at what Slurm has done; the outcome does not depend on it
    return seen


def test_a_job_runs_and_is_cancelled(submit: Callable[[Scheduler, str], str]) -> None:
    slurm = Slurm()
    id_ = submit(slurm, "#SBATCH --nodes=2 --output=scheduler-%j.log\nsleep 1000")
    seen = reach(slurm, id_, State.RUNNING)
    assert seen.nodes == ("node1", "node2")
    slurm.cancel(id_)
    reach(slurm, id_, State.CANCELLED)
    slurm.cancel(id_)  # has ended already: left


@pytest.mark.parametrize(("script", "state"), [("true", State.COMPLETED), ("exit 3", State.FAILED)])
def test_how_it_ended(submit: Callable[[Scheduler, str], str], script: str, state: State) -> None:
    slurm = Slurm()
    reach(slurm, submit(slurm, f"#SBATCH --output=/dev/null\n{script}"), state)


def test_an_array_and_its_tasks(submit: Callable[[Scheduler, str], str]) -> None:
    slurm = Slurm()
    task = "[[ $SLURM_ARRAY_TASK_ID != 1 ]]"
    id_ = submit(slurm, f"#SBATCH --array=0-2%1 --output=/dev/null\n{task}")
    assert reach(slurm, id_, State.FAILED).reason == "1 failed, 2 completed"
    seen = slurm.look([f"{id_}_0", f"{id_}_1", f"{id_}_7"])
    assert [each.state for each in seen.values()] == [State.COMPLETED, State.FAILED, State.UNKNOWN]


def test_a_job_that_is_held(cluster: Cluster, submit: Callable[[Scheduler, str], str]) -> None:
    slurm = Slurm()
    id_ = submit(slurm, "#SBATCH --hold --output=/dev/null")
    assert reach(slurm, id_, State.HELD).reason == "JobHeldUser"
    cluster.run("scontrol", "release", id_)
    reach(slurm, id_, State.COMPLETED)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"partition": "mian"}, "partition: Slurm has no 'mian'; did you mean 'main'?"),
        ({"nodes": 3}, "nodes: 3 is more than partition main has: 2"),
        ({"gpus_per_node": 3}, "sbatch rejects this job: Requested node configuration is not available; 'sinfo"),
        ({"constraint": "a&b"}, "sbatch rejects this job: Invalid feature specification"),
        ({"dependency": "afterok:99999"}, "dependency: Slurm does not know job 99999"),
        ({"dependency": "foo"}, "sbatch rejects this job: Job dependency problem"),
        ({"array": "0-100000000"}, "sbatch rejects this job: Invalid job array specification"),
    ],
)
def test_what_cannot_be_is_said_before(changes: dict[str, object], told: str) -> None:
    with pytest.raises(LaunchError) as error:
        Slurm().check(LaunchConfig(launcher="slurm", **changes))  # type: ignore[arg-type]
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_slurm_takes_the_scripts(cluster: Cluster, script: Path) -> None:
    """Options of the command line take the place of what this cluster does not have; all lines are read."""
    smaller = ["--nodes=1", "--gpus-per-node=1", "--cpus-per-task=1", "--mem=100M", "--partition=main", "--constraint="]
    smaller += ["--ntasks-per-node=1", "--mincpus=1", "--exclude=", "--nodelist=node1", "--dependency="]
    cluster.run("sbatch", "--test-only", *smaller, str(script))


def test_through_the_commands_of_pbs(submit: Callable[[Scheduler, str], str], tmp_path: Path) -> None:
    programs = ("qsub", "qstat", "qdel", "pbsnodes")
    install_or_skip(programs, ("slurm-wlm-torque",))
    pbs = Pbs()
    pbs.check(LaunchConfig(launcher="pbs", nodes=2, gpus_per_node=2, partition="main"))
    id_ = submit(pbs, "#PBS -l select=2:ncpus=1:mpiprocs=1\necho begun; sleep 1000")
    seen = reach(pbs, id_, State.RUNNING)
    assert seen.nodes == ("node1", "node2")
    pbs.cancel(id_)
    reach(pbs, id_, State.ENDED)
    assert "begun" in next(tmp_path.glob("*/scheduler.log")).read_text()
