"""A warning reaches the ranks of a script without a supervisor, whichever starter it has: on a real Slurm."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge_ops.jobs.script.render import Script, render
from helpers.dev_cluster import Cluster, slurm_cluster
from helpers.packages import install_or_skip

pytestmark = pytest.mark.chaos

# A line in one piece: ranks of torchrun write into one pipe.
_RANK = (
    "import os, signal, sys; rank = os.environ['RANK']; say = lambda word: os.write(1, f'{word} {rank}\\n'.encode());"
    " signal.signal(signal.SIGUSR1, lambda *_: (say('warned'), sys.exit(75))); say('ready');"
    " [signal.pause() for _ in iter(int, 1)]"
)
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as running:
        yield running


@pytest.mark.parametrize(
    ("starter", "nodes", "batch"), [("srun", 2, False), ("torchrun", 2, False), ("mpirun", 1, True)]
)
def test_a_warning_reaches_every_rank(cluster: Cluster, tmp_path: Path, starter: str, nodes: int, batch: bool) -> None:
    """As Slurm sends it: to the steps or, as the script of mpirun asks for it, to the script."""
    if starter == "mpirun":
        install_or_skip(("mpirun",), ("openmpi-bin",))
    launch = LaunchConfig(
        launcher="slurm", starter=starter, nodes=nodes, ranks_per_node=2, supervise=False, requeue=False
    )  # type: ignore[arg-type]
    made = Script(
        name="warned",
        launch=launch,
        command=(sys.executable, "-c", _RANK),
        directory=tmp_path,
        job=tmp_path,
        python=sys.executable,
        trains=False,
        environment=tuple(_AS_ROOT.items()),
    )
    (tmp_path / "script.sh").write_text(render(made))
    log = tmp_path / "job.log"
    job = cluster.submit([f"--output={log}", str(tmp_path / "script.sh")])

    def told(word: str) -> set[str]:
        lines = log.read_text().splitlines() if log.exists() else []
        return {line.split()[1] for line in lines if line.startswith(word)}

    all_ranks = set(map(str, range(2 * nodes)))
    cluster.poll(job, lambda: told("ready") == all_ranks, 300)
    cluster.run("scancel", "--signal=USR1", *(["--batch"] if batch else []), job)
    ended = cluster.wait(job, 300)
    if starter == "srun":
        assert told("warned") == all_ranks, log.read_text()
    # torchrun ends the others of its node as soon as one has ended, and mpirun does too: one of each node is enough.
    for first in range(0, 2 * nodes, 2):
        assert told("warned") & {str(first), str(first + 1)}, log.read_text()
    assert ended["ExitCode"] == ("1:0" if starter == "torchrun" else "75:0"), log.read_text()
