"""A development cluster of a user who is not root, by the command line: what it can, and what it says it cannot."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.dev_cluster import install_slurm_or_skip
from helpers.leftovers import processes_of

LIMIT_S = 300.0

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, since sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="user-") as name:
        yield Path(name)


@pytest.fixture
def run(home: Path) -> Run:
    """Runs a command as a user with no rights, in whose home nothing is."""
    install_slurm_or_skip()
    become = [] if os.geteuid() != 0 else ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
    if subprocess.run([*become, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("root needs user namespaces to be somebody else here")

    def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        words = [*become, *command]
        variables = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home / "c")} | environment
        return subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=LIMIT_S)

    return run


def test_up_jobs_fail_heal_down(run: Run, home: Path) -> None:
    def dev(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run(sys.executable, "-m", "glmforge", "cluster", "dev", *arguments)

    directory = home / "c/glmforge/dev/mine"
    mine = ["--name", "mine"]
    up = dev("up", "--nodes", "2", "--gpus", "2", *mine)
    assert up.returncode == 0, up.stderr
    try:
        assert "this is a plain cluster (you are not root):" in up.stderr
        assert "GPUs are plain files: Slurm counts them, but does not set CUDA_VISIBLE_DEVICES" in up.stderr
        assert f"export SLURM_CONF={directory}/slurm/slurm.conf" in up.stdout
        asks = ["srun", "-N2", "--gpus-per-node=2", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE"]
        job = run(*asks, SLURM_CONF=f"{directory}/slurm/slurm.conf")
        assert sorted(job.stdout.splitlines()) == ["node1 2", "node2 2"], job.stderr
        again = dev("up", *mine)
        assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)
        assert "a cluster is up there already; end it: glmforge cluster dev down" in again.stderr
        cut = dev("cut", "node1", *mine)
        assert (cut.returncode, len(cut.stderr.splitlines())) == (1, 1)
        assert dev("fail", "node1", *mine).returncode == 0
        found = json.loads(dev("status", "--json", *mine).stdout)
        assert {host["name"]: host["state"] for host in found["hosts"]} == {
            "head": "up",
            "node1": "failed",
            "node2": "up",
        }
        assert dev("heal", "node1", *mine).returncode == 0
        assert dev("status", *mine).stdout.count("idle") == 2
    finally:
        down = dev("down", *mine)
    assert down.returncode == 0, down.stderr
    assert processes_of(directory) == []
    assert not (home / "c/glmforge").exists()
