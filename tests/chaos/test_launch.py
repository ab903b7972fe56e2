"""Jobs that were launched, through what happens on a cluster with a real Slurm: they go on by themselves.

Bit-equal losses of all steps, each recorded once, say that every sample was trained on once and in order, and that no
state was lost or made up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

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
LAUNCHERS = {
    "local": ["--launcher", "local", "--ranks-per-node", "2", "--detach"],
    "ssh": ["--launcher", "ssh", "--hosts", "node[1-2]", "--nodes", "2", "--detach"],
    "slurm": SLURM,
    "pbs": ["--launcher", "pbs", "--nodes", "2", "--options", "pbs.yaml"],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
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


@pytest.fixture
def start(cluster: Cluster, tiny_data: TinyData, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Launches the run; whatever is left of it is ended."""
    jobs = []

    def start(*words: str, steps: int = STEPS) -> Launched:
        jobs.append(launch(cluster, tmp_path, small_run(tiny_data, tmp_path / "run", steps), *words))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_runs_it_to_the_same_losses(
    launcher: str, start: Callable[..., Launched], tiny_data: TinyData, tmp_path: Path
) -> None:
    if launcher == "pbs":
        install_or_skip(("qsub", "qstat", "pbsnodes"), ("slurm-wlm-torque",))
    (tmp_path / "pbs.yaml").write_text("starter: srun\n")
    words = [str(tmp_path / word) if word == "pbs.yaml" else word for word in LAUNCHERS[launcher]]
    job = start(*words, steps=FEW_STEPS)
    losses = job.finish()
    assert losses == unharmed(small_run(tiny_data, tmp_path / "whole", FEW_STEPS), tmp_path / "unharmed", RANKS)
    assert job.causes() == ["finished"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_job_gets_over(name: str, start: Callable[..., Launched], reference: Reference) -> None:
    fault = FAULTS[name]
    job = start(*SLURM, "--spare-nodes", "0" if "supervisor" in name else "1")
    job.wait_for_step(STRUCK_AFTER)
    attempt = job.attempt
    mend = fault.strike(job)
    try:
        told = job.wait_for_training(attempt)
        print(name, told)
        assert told["after"] == attempt
    finally:
        mend()
    job.wait_for_step(job.step + STEPS_AFTER)
    losses = job.stop()
    assert losses == reference.first(len(losses))
    assert job.attempt == attempt + 1
    assert set(job.causes()[:-1]) <= fault.causes


def test_a_job_that_is_cancelled_stays_so(cluster: Cluster, start: Callable[..., Launched]) -> None:
    job = start(*SLURM)
    job.wait_for_step(STRUCK_AFTER)
    cluster.run("scancel", job.number)
    job.wait_until_gone()
    assert cluster.job(job.number)["JobState"] == "CANCELLED"
    assert "requeued" not in [event["event"] for event in job.files.read_events()]
    assert "cancelled" in job.glmforge("jobs", "show", job.config.name)
