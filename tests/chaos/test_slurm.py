"""The example script under a real Slurm: whatever ends the job, it is requeued, and ends as if nothing had been."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from glmforge.config import dump_config
from glmforge.observe.record_files import read_jsonl
from helpers.chaos import run_config
from helpers.dev_cluster import NUM_NODES, Cluster, slurm_cluster
from helpers.held_training import HELD_AFTER, goes_on, held_python
from helpers.job import start_job
from helpers.prepared import programs
from helpers.tiny_data import TinyData

pytestmark = pytest.mark.chaos

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "pretrain.sbatch"
NUM_STEPS = 24
LIMIT_S = 600.0
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "MAX_FAILURES": "1",
}
# Patient with a busy machine: nothing here is to end because a process was slow.
PATIENCE = ["parallel.process_group_timeout_s=400", "fault_tolerance.hang_timeout_s=300"]


@dataclass(frozen=True)
class SlurmRun:
    """A run of the example script on both nodes."""

    cluster: Cluster
    directory: Path
    job: str

    @property
    def events(self) -> list[dict[str, Any]]:
        path = self.directory / "run" / "events.jsonl"
        return read_jsonl(path) if path.exists() else []

    @property
    def losses(self) -> list[float]:
        return losses_of(self.directory)

    @property
    def log(self) -> str:
        return self.cluster.log_of(self.cluster.job(self.job))

    def wait_until(self, reached: Callable[[], bool]) -> None:
        self.cluster.poll(self.job, reached, LIMIT_S)

    def wait_for_blow(self) -> None:
        """Until the run has taken most of the steps after which it waits."""
        self.wait_until(lambda: len(self.losses) >= HELD_AFTER - 2)

    def kill_a_task(self) -> None:
        """The others go on."""
        os.kill(self.cluster.tasks(self.job)[1], signal.SIGKILL)
        goes_on(self.directory).touch()

    def finish(self) -> dict[str, str]:
        """The job, which must complete."""
        job = self.cluster.wait(self.job, LIMIT_S)
        assert job["JobState"] == "COMPLETED", f"{job}\n{self.log}"
        return job

    def names_of_events(self) -> list[str]:
        return [event["event"] for event in self.events if event["event"] in EVENTS]


EVENTS = ("started", "preempted", "resumed", "finished")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def submit(cluster: Cluster, tiny_data: TinyData, tmp_path: Path) -> Iterator[Callable[..., SlurmRun]]:
    """Submits the script, its run held for the blow; the job is cancelled if the test fails."""
    runs = []

    def submit(tasks_per_node: int, *overrides: str) -> SlurmRun:
        size = [f"--nodes={NUM_NODES}", f"--ntasks-per-node={tasks_per_node}", f"--gpus-per-node={tasks_per_node}"]
        options = [*size, "--cpus-per-task=1", "--time=60", f"--chdir={tmp_path}", str(SCRIPT)]
        config = write_config(tiny_data, tmp_path)
        environment = ENVIRONMENT | {"PYTHON": held_python(tmp_path)}
        job = cluster.submit([*options, str(config), *PATIENCE, *overrides], environment)
        runs.append(SlurmRun(cluster, tmp_path, job))
        return runs[-1]

    yield submit
    for run in runs:
        cluster.run("scancel", "--quiet", run.job)


@pytest.fixture(scope="module")
def reference(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[float]]:
    """Losses of a run on so many ranks that nothing happens to."""

    @cache
    def losses(world_size: int) -> list[float]:
        directory = tmp_path_factory.mktemp(f"reference-{world_size}")
        job = start_job(write_config(tiny_data, directory), world_size, directory / "notes", 0, lambda rank: PATIENCE)
        assert not any(job.wait(LIMIT_S)), job.tail()
        return losses_of(directory)

    return losses


def write_config(data: TinyData, directory: Path) -> Path:
    path = directory / "run.yaml"
    config = run_config(data, directory / "run", NUM_STEPS)
    fewer_saves = config.checkpoint.model_copy(update={"every_steps": 20, "ephemeral_every_steps": 5})
    path.write_text(dump_config(config.model_copy(update={"checkpoint": fewer_saves})))
    return path


def losses_of(directory: Path) -> list[float]:
    path = directory / "run" / "metrics.jsonl"
    return [record["loss"] for record in read_jsonl(path)] if path.exists() else []


def test_a_warned_job_saves_is_requeued_and_finishes(
    submit: Callable[..., SlurmRun], reference: Callable[[int], list[float]]
) -> None:
    run = submit(2)
    run.wait_for_blow()
    run.cluster.run("scancel", "--signal=USR1", run.job)
    run.wait_until(lambda: "preempted" in run.names_of_events())
    job = run.finish()
    assert job["Restarts"] == "1"
    assert run.names_of_events() == ["started", "preempted", "resumed", "finished"]
    assert "ended with status 75" in run.log
    _, preempted, resumed, _ = [event for event in run.events if event["event"] in EVENTS]
    assert preempted["step"] == resumed["step"]  # not one step is lost
    assert preempted["detail"].startswith("SIGUSR1 on 4 of 4 ranks")
    assert run.losses == reference(4)


def test_a_job_gives_way_to_a_more_urgent_one_and_comes_back(
    submit: Callable[..., SlurmRun], reference: Callable[[int], list[float]], tmp_path: Path
) -> None:
    """Slurm warns with the signal that the script asks for; the urgent job gets the nodes as soon as all is saved."""
    run = submit(1)
    run.wait_for_blow()
    at = tmp_path / "urgent"
    urgent = run.cluster.submit(
        ["--partition=urgent", f"--nodes={NUM_NODES}", "--exclusive", "--output=/dev/null", f"--wrap=date > {at}"]
    )
    assert run.cluster.wait(urgent, LIMIT_S)["JobState"] == "COMPLETED"
    assert run.names_of_events() == ["started", "preempted"]
    job = run.finish()
    assert job["Restarts"] == "1"
    assert run.names_of_events() == ["started", "preempted", "resumed", "finished"]
    assert "SIGUSR1 on 2 of 2 ranks" in str(run.events)
    assert run.losses == reference(2)


def test_a_job_that_is_requeued_from_outside_saves_in_the_time_it_has(
    submit: Callable[..., SlurmRun], reference: Callable[[int], list[float]]
) -> None:
    """Slurm ends all processes with SIGTERM, the script first; the tasks have until KillWait to save."""
    run = submit(1)
    run.wait_for_blow()
    run.cluster.run("scontrol", "requeue", run.job)
    job = run.finish()
    assert job["Restarts"] == "1"
    assert run.names_of_events() == ["started", "preempted", "resumed", "finished"]
    assert "SIGTERM on 2 of 2 ranks" in str(run.events)
    assert run.losses == reference(2)


def test_a_job_that_lost_a_task_is_requeued_and_finishes(
    submit: Callable[..., SlurmRun], reference: Callable[[int], list[float]]
) -> None:
    run = submit(1)
    run.wait_for_blow()
    run.kill_a_task()
    job = run.finish()
    assert job["Restarts"] == "1"
    assert run.names_of_events() == ["started", "resumed", "finished"]
    assert run.losses == reference(2)
    assert not list(run.directory.glob("*.failures"))


def test_a_job_that_cannot_run_is_given_up(submit: Callable[..., SlurmRun]) -> None:
    run = submit(1, "data.sources.0.path=/nowhere/at/all")
    job = run.cluster.wait(run.job, LIMIT_S)
    assert job["JobState"] == "FAILED"
    assert job["Restarts"] == ENVIRONMENT["MAX_FAILURES"]
    assert job["ExitCode"] == "1:0"
    assert run.log.count("/nowhere/at/all") >= 2
    assert "gives up: failed 2 times in a row" in run.log


def test_tasks_of_a_bare_srun_are_the_ranks(
    cluster: Cluster, reference: Callable[[int], list[float]], tiny_data: TinyData, tmp_path: Path
) -> None:
    """No variable is set for them, and the nodes' names are none that the network knows."""
    config = write_config(tiny_data, tmp_path)
    train = f"srun {programs()}/python -m glmforge train {config} {' '.join(PATIENCE)}"
    size = [f"--nodes={NUM_NODES}", "--ntasks-per-node=2", "--cpus-per-task=1", f"--chdir={tmp_path}"]
    job = cluster.submit([*size, f"--output={tmp_path}/log", f"--wrap={train}"], ENVIRONMENT)
    ended = cluster.wait(job, LIMIT_S)
    assert ended["JobState"] == "COMPLETED", cluster.log_of(ended)
    assert losses_of(tmp_path) == reference(4)
    assert (tmp_path / "log").read_text().count(f"{NUM_STEPS} steps") == 1  # one process speaks


def test_half_of_the_variables_is_refused_with_the_line_to_use(
    cluster: Cluster, tiny_data: TinyData, tmp_path: Path
) -> None:
    config = write_config(tiny_data, tmp_path)
    script = f"srun --nodes=1 --ntasks=1 env RANK=0 {sys.executable} -m glmforge train {config}"
    job = cluster.submit([f"--chdir={tmp_path}", f"--output={tmp_path}/log", f"--wrap={script}"], ENVIRONMENT)
    assert cluster.wait(job, LIMIT_S)["JobState"] == "FAILED"
    log = (tmp_path / "log").read_text()
    assert "glmforge: WORLD_SIZE is not set, but RANK is: start with 'torchrun" in log
    assert "'srun --ntasks N glmforge train CONFIG'" in log
    assert "Traceback" not in log
    assert not (tmp_path / "run").exists()


def test_a_batch_script_itself_is_no_task(cluster: Cluster, tmp_path: Path) -> None:
    """It is alone, whatever the job has room for, and may start torchrun."""
    asks = "from glmforge.runtime.launch import LaunchEnvironment; print(LaunchEnvironment.read().world_size)"
    size = [f"--nodes={NUM_NODES}", "--ntasks-per-node=2"]
    job = cluster.submit([*size, f"--output={tmp_path}/log", f'--wrap={sys.executable} -c "{asks}"'], ENVIRONMENT)
    assert cluster.wait(job, LIMIT_S)["JobState"] == "COMPLETED"
    assert (tmp_path / "log").read_text() == "1\n"


def test_a_job_that_died_before_its_first_checkpoint_starts_anew(
    submit: Callable[..., SlurmRun], reference: Callable[[int], list[float]]
) -> None:
    run = submit(1, "checkpoint.ephemeral_every_steps=null", "checkpoint.every_steps=100")
    run.wait_for_blow()
    run.kill_a_task()
    job = run.finish()
    assert job["Restarts"] == "1"
    assert run.names_of_events() == ["started", "resumed", "finished"]
    assert [event["step"] for event in run.events if event["event"] == "resumed"] == [0]
    assert run.losses == reference(2)
