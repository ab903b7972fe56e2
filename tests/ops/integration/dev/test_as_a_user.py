"""A development cluster of a user who is not root, by the command line: what it can, and what it says it cannot."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

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
def run(home: Path) -> Iterator[Run]:
    """Runs a command as a user with no rights, in whose home nothing is."""
    install_slurm_or_skip()
    become = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
    if os.geteuid() == 0 and subprocess.run([*become, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("root needs user namespaces to be somebody else here")
    with subprocess.Popen([*become, "sh", "-c", "echo; read -r _"], stdin=PIPE, stdout=PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        enter = ["nsenter", "--user", f"--target={user.pid}", "--preserve-credentials"] if os.geteuid() == 0 else []

        def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
            variables = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home / "c")} | environment
            words = [*enter, *command]
            return subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=LIMIT_S)

        yield run
        user.communicate()


def test_up_jobs_fail_heal_down(run: Run, home: Path) -> None:
    def dev(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run(sys.executable, "-m", "glmforge", "cluster", "dev", *arguments)

    directory = home / "c/glmforge/dev/default"
    up = dev("up", "--nodes", "2", "--gpus", "2")
    assert up.returncode == 0, up.stderr
    try:
        assert "this is a plain cluster (you are not root):" in up.stdout
        assert "GPUs are plain files: Slurm counts them, but does not set CUDA_VISIBLE_DEVICES" in up.stdout
        assert f"export SLURM_CONF={directory}/slurm/slurm.conf" in up.stdout
        asks = ["srun", "-N2", "--gpus-per-node=2", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE"]
        job = run(*asks, SLURM_CONF=f"{directory}/slurm/slurm.conf")
        assert sorted(job.stdout.splitlines()) == ["node1 2", "node2 2"], job.stderr
        for refused in (dev("up"), dev("cut", "node1")):
            assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
        assert dev("fail", "node1").returncode == 0
        found = json.loads(dev("status", "--json").stdout)
        states = {host["host"]: host["state"] for host in found["hosts"]}
        assert states == {"head": "up", "node1": "failed", "node2": "up"}
        assert dev("heal", "node1").returncode == 0
        assert dev("status").stdout.count("idle") == 2
    finally:
        down = dev("down")
    assert down.returncode == 0, down.stderr
    assert processes_of(directory) == []
    assert not directory.exists()
