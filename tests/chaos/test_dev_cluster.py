"""Development clusters that are killed on the way up, lose nodes, and stand beside each other: nothing is left."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from glmforge.errors import HostError
from glmforge_ops.dev import DevCluster, DevOptions, bring_up, development_cluster
from glmforge_ops.dev.bring_up import free_ports
from helpers.dev_cluster import Cluster, hosts_or_skip, install_slurm_or_skip
from helpers.leftovers import belongings_of, mounts_of, processes_of

pytestmark = pytest.mark.chaos

GLMFORGE = [sys.executable, "-m", "glmforge", "cluster", "dev"]
LIMIT_S = 300.0


@pytest.fixture(autouse=True)
def _possible() -> None:
    install_slurm_or_skip()
    hosts_or_skip()


def glmforge(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*GLMFORGE, *arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_up_is_killed(short_path: Path) -> None:
    """At each of the moments that a file marks, it leaves a directory that the next `up` can use, and nothing else."""
    directory = short_path / "cluster"
    command = ["up", "--directory", str(directory), "--nodes", "2"]
    moments = ["hosts", "log/head.host.log", "slurm/slurm.conf", "log/head.slurmctld.log", "log/node2.host.log"]
    for file in [*moments, "log/node2.slurmd.log"]:
        with subprocess.Popen([*GLMFORGE, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
            while not (directory / file).exists():
                assert up.poll() is None
            up.kill()
        while left := [*processes_of(directory), *mounts_of(directory)]:  # the test's time limit is the patience
            print(file, left)
    again = glmforge(*command)
    assert again.returncode == 0, again.stderr
    assert glmforge("down", "--directory", str(directory)).returncode == 0
    assert list(short_path.iterdir()) == []


def test_a_job_that_loses_a_node_is_requeued_and_finishes(short_path: Path) -> None:
    """Slurm finds out by itself."""
    options = DevOptions(nodes=3, gpus=2, slurmd_timeout_s=10)
    with development_cluster(short_path / "cluster", options) as dev:
        cluster = Cluster(dev)
        waits = 'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 600; fi; srun hostname'
        log = short_path / "log"
        job = cluster.submit(["-N2", "--gpus-per-node=1", f"--output={log}", f"--wrap={waits}"])
        cluster.poll(job, lambda: cluster.job(job)["JobState"] == "RUNNING", LIMIT_S)
        lost = cluster.job(job)["BatchHost"]
        dev.fail(lost)
        ended = cluster.wait(job, LIMIT_S)
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
        assert sorted(log.read_text().split()[-2:]) == sorted({"node1", "node2", "node3"} - {lost})
        dev.heal(lost)
        assert cluster.run("srun", "-N3", "hostname").split()


def test_clusters_beside_each_other(short_path: Path) -> None:
    """Each has addresses of its own, and fails alone."""
    options = DevOptions(nodes=2, gpus=1, mode="namespaces")
    with (
        development_cluster(short_path / "one", options) as one,
        development_cluster(short_path / "two", options) as two,
    ):
        assert not {one.address(node) for node in one.nodes} & {two.address(node) for node in two.nodes}
        one.fail("node1")
        assert two.slurm("srun", "-N2", "hostname").split() in (["node1", "node2"], ["node2", "node1"])
        belongings = belongings_of(two)
    assert belongings.left() == []


def test_two_ups_at_once(short_path: Path) -> None:
    """One starts the cluster, the other is refused in one line."""
    command = [*GLMFORGE, "up", "--nodes", "1", "--directory", str(short_path / "cluster")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=LIMIT_S)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    (refusal,) = [text for text, process in zip(said, both, strict=True) if process.returncode]
    assert "locked by another command; wait" in refusal or "a cluster is up there already" in refusal
    assert len(refusal.splitlines()) == 1
    status = json.loads(glmforge("status", "--json", "--directory", str(short_path / "cluster")).stdout)
    assert {host["state"] for host in status["hosts"]} == {"up"}
    assert glmforge("down", "--directory", str(short_path / "cluster")).returncode == 0


@pytest.mark.parametrize(("which", "daemon"), [(0, "slurmctld of head"), (1, "slurmd of node1")])
def test_a_port_that_somebody_took_meanwhile(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, which: int, daemon: str
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        ports = free_ports(20)
        monkeypatch.setattr(
            bring_up,
            "free_ports",
            lambda count: [taken.getsockname()[1] if n == which else ports[n] for n in range(count)],
        )
        with pytest.raises(HostError, match=daemon) as raised:
            DevCluster.start(short_path / "cluster", DevOptions(nodes=2, gpus=0, mode="plain"))
    assert "\n" not in str(raised.value)
    print(raised.value)
    assert processes_of(short_path / "cluster") == []
