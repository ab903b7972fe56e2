"""Jobs that were launched, under every launcher, through what happens on a cluster: they end by themselves, and well.

Bit-equal losses of all steps, each recorded once, say that every sample was trained on once and in order, and that no
state was lost or made up.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helpers.chaos import small_disk
from helpers.dev_cluster import Cluster
from helpers.launch_faults import FAULTS
from helpers.launched import Launched, launch, launch_cluster, small_run, unharmed
from helpers.packages import install_or_skip
from helpers.tiny_data import TinyData

pytestmark = pytest.mark.chaos

FEW_STEPS = 30
STEPS = 100_000
"""Of a run that is stopped once it has got over what happened."""
STRUCK_AFTER, STEPS_AFTER = 7, 5
RANKS = 2
SLURM = ["--launcher", "slurm", "--nodes", "2", "--cpus-per-task", "1"]
HOSTS = ["--hosts", "node[1-2]", "--nodes", "2", "--detach"]
LAUNCHERS = {
    "local": ["--launcher", "local", "--ranks-per-node", "2", "--detach"],
    "local torchrun": ["--launcher", "local", "--starter", "torchrun", "--ranks-per-node", "2", "--detach"],
    "ssh": ["--launcher", "ssh", *HOSTS],
    "ssh torchrun": ["--launcher", "ssh", "--starter", "torchrun", *HOSTS],
    "slurm": SLURM,
    "slurm torchrun": [*SLURM, "--starter", "torchrun"],
    "mpi": ["--launcher", "mpi", *HOSTS],
    "pbs": ["--launcher", "pbs", "--nodes", "2", "--starter", "srun"],
}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small file system, mounted before the hosts are made, so that they see it."""
    with small_disk(tmp_path_factory.mktemp("disk") / "small", 64) as mounted:
        if mounted is None:
            pytest.skip("no file system can be mounted here")
        yield mounted


@pytest.fixture(scope="module")
def cluster(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with launch_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@dataclass
class Reference:
    """Losses of a run that nothing happens to; those of its first steps do not depend on how far it goes."""

    data: TinyData
    directory: Path
    losses: list[float] = field(default_factory=list)

    def first(self, steps: int) -> list[float]:
        if len(self.losses) < steps:
            directory = self.directory / f"{steps}"
            self.losses = unharmed(small_run(self.data, directory / "run", STEPS), directory, RANKS, steps)
        return self.losses[:steps]


@pytest.fixture(scope="module")
def reference(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tiny_data, tmp_path_factory.mktemp("unharmed"))


@pytest.fixture(scope="module")
def short_reference(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    directory = tmp_path_factory.mktemp("short")
    return unharmed(small_run(tiny_data, directory / "run", FEW_STEPS), directory / "unharmed", RANKS)


@pytest.fixture
def start(cluster: Cluster, disk: Path, tiny_data: TinyData, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Launches the run; whatever is left of it is ended."""
    jobs = []

    def start(*words: str, steps: int = STEPS) -> Launched:
        checkpoints = disk / "checkpoints"
        checkpoints.mkdir()
        (tmp_path / "run").mkdir()
        (tmp_path / "run/checkpoints").symlink_to(checkpoints)
        jobs.append(launch(cluster, tmp_path, small_run(tiny_data, tmp_path / "run", steps), *words))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()
    shutil.rmtree(disk / "checkpoints", ignore_errors=True)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_runs_it_to_the_same_losses(
    launcher: str, start: Callable[..., Launched], short_reference: list[float]
) -> None:
    if launcher == "mpi":
        install_or_skip(("mpirun.openmpi",), ("openmpi-bin",))
    if launcher == "pbs":
        install_or_skip(("qsub", "qstat", "pbsnodes"), ("slurm-wlm-torque",))
    job = start(*LAUNCHERS[launcher], steps=FEW_STEPS)
    assert job.finish() == short_reference
    assert job.causes() == ["finished"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_job_gets_over(name: str, start: Callable[..., Launched], reference: Reference, tmp_path: Path) -> None:
    fault = FAULTS[name]
    options = tmp_path / "options.yaml"
    options.write_text("supervisor: {look_every_s: 10}\n")
    job = start(*SLURM, "--spare-nodes", "0" if "supervisor" in name else "1", "--options", str(options))
    job.wait_for_step(STRUCK_AFTER)
    attempt = job.attempt
    mend = fault.strike(job)
    try:
        if fault.causes:
            told = job.wait_for_training(attempt)
            print(name, told)
            assert attempt <= told["after"] < attempt + fault.attempts
    finally:
        mend()
    job.wait_for_step(job.step + STEPS_AFTER)
    losses = job.stop()
    assert losses == reference.first(len(losses))
    assert bool(fault.causes) <= job.attempt - attempt <= fault.attempts * bool(fault.causes)
    if name == "prolog fails":
        assert job.events("hold released")
    assert set(job.causes()[:-1]) <= fault.causes


def test_a_job_that_is_cancelled_stays_so(cluster: Cluster, start: Callable[..., Launched]) -> None:
    job = start(*SLURM)
    job.wait_for_step(STRUCK_AFTER)
    cluster.run("scancel", job.number)
    job.wait_until_gone()
    assert cluster.job(job.number)["JobState"] == "CANCELLED"
    assert "requeued" not in [event["event"] for event in job.files.read_events()]
    assert "cancelled" in job.glmforge("jobs", "show", job.config.name)
