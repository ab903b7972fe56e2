"""Development clusters that are started and ended, and killed on the way up, again and again: nothing is left."""

import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from glmforge.errors import HostError
from glmforge_ops.dev import DevCluster, DevOptions, bring_up, development_cluster
from glmforge_ops.dev.places import free_ports
from helpers.dev_cluster import Cluster, hosts_or_skip, install_slurm_or_skip
from helpers.leftovers import belongings_of, interfaces, mounts_of, processes_of

pytestmark = pytest.mark.chaos

NUM_ROUNDS = 20
SEED = 20260102
LIMIT_S = 300.0


@pytest.fixture(autouse=True)
def _possible() -> None:
    install_slurm_or_skip()
    hosts_or_skip()


def glmforge(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "glmforge", "cluster", "dev", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def mount_points() -> list[str]:
    """This machine's, but those of other tests."""
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line for line in lines if not line.split()[1].startswith(tempfile.gettempdir())]


@pytest.mark.parametrize("mode", ["namespaces", "plain"])
def test_up_fail_heal_down(short_path: Path, mode: str) -> None:
    directory = short_path / "cluster"
    before, mounts = interfaces(), mount_points()
    for number in range(NUM_ROUNDS):
        began = time.monotonic()
        started = DevCluster.start(directory, DevOptions(nodes=3, gpus=2, mode=mode))
        up = time.monotonic() - began
        started.detach()
        belongings = belongings_of(started)
        del started
        cluster = DevCluster.open(directory)
        cluster.fail("node2")
        cluster.heal("node2")
        assert cluster.slurm("srun", "-N3", "true") == ""
        cluster.down()
        assert belongings.left() == []
        print(f"{mode} {number}: up in {up:.2f} s, all in {time.monotonic() - began:.2f} s")
    assert interfaces() == before
    assert mount_points() == mounts
    assert list(short_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["namespaces", "plain"])
def test_up_killed_at_any_moment(short_path: Path, mode: str) -> None:
    random_ = random.Random(SEED)
    directory = short_path / "cluster"
    command = [sys.executable, "-m", "glmforge", "cluster", "dev", "up", "--directory", str(directory), "--nodes", "2"]
    command += ["--plain"] if mode == "plain" else []
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    takes_s = time.monotonic() - began
    DevCluster.open(directory).down()
    num_killed = num_late = 0
    for _ in range(NUM_ROUNDS):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
            time.sleep(random_.uniform(0, takes_s))  # the moment is what is random
            num_killed += up.poll() is None
            up.kill()
        if up.returncode == 0 or _is_up(directory):
            num_late += up.returncode != 0  # killed when all was done but its last lines
            DevCluster.open(directory).down()
        else:
            _wait_until_gone(directory)
    assert num_killed - num_late >= NUM_ROUNDS // 2
    again = glmforge("up", "--directory", str(directory), "--nodes", "2", *command[10:])
    assert again.returncode == 0, again.stderr
    assert glmforge("down", "--directory", str(directory)).returncode == 0
    assert list(short_path.iterdir()) == []


def _is_up(directory: Path) -> bool:
    """Whether it outlives its maker. One that does not is told of its end by then, and does not answer."""
    try:
        return DevCluster.open(directory).slurm("srun", "-N2", "true") == ""
    except HostError:
        return False


def _wait_until_gone(directory: Path) -> None:
    """It ends by itself, soon: nobody has to know that it was there."""
    deadline = time.monotonic() + LIMIT_S
    while left := [*processes_of(directory), *mounts_of(directory)]:
        assert time.monotonic() < deadline, left


def test_a_job_that_loses_a_node_is_requeued_and_finishes(short_path: Path) -> None:
    """Slurm finds out by itself; the accounts say what became of the job."""
    install_slurm_or_skip(accounting=True)
    options = DevOptions(nodes=3, gpus=2, slurmd_timeout_s=10, accounting=True)
    with development_cluster(short_path / "cluster", options) as dev:
        cluster = Cluster(dev)
        waits = 'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 600; fi; srun hostname'
        log = short_path / "log"
        job = cluster.submit(["-N2", "--gpus-per-node=1", f"--output={log}", f"--wrap={waits}"])
        cluster.poll(job, lambda: cluster.job(job)["JobState"] == "RUNNING", LIMIT_S)
        lost = cluster.job(job)["BatchHost"]
        began = time.monotonic()
        dev.fail(lost)
        ended = cluster.wait(job, LIMIT_S)
        print(f"requeued and finished {time.monotonic() - began:.1f} s after the failure")
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
        assert sorted(log.read_text().split()[-2:]) == sorted({"node1", "node2", "node3"} - {lost})
        dev.heal(lost)
        asks = ("sacct", "-P", "-n", "-X", "--duplicates", "-j", job, "-o", "State,AllocTRES")
        deadline = time.monotonic() + LIMIT_S
        while "COMPLETED" not in (accounts := cluster.run(*asks)):
            assert time.monotonic() < deadline, accounts
            time.sleep(0.2)  # the controller tells the accounts in its own time
        assert "NODE_FAIL" in accounts
        assert "gres/gpu=2" in accounts
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


def test_two_at_once_are_told_apart(short_path: Path) -> None:
    """One makes the cluster; the other says in one line that it does, or has done."""
    command = [sys.executable, "-m", "glmforge", "cluster", "dev", "up", "--nodes", "1", "--directory"]
    command.append(str(short_path / "cluster"))
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=LIMIT_S)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    (refusal,) = [text for text, process in zip(said, both, strict=True) if process.returncode]
    assert "is just changing this cluster; wait" in refusal or "a cluster is up there already" in refusal
    assert len(refusal.splitlines()) == 1
    status = json.loads(glmforge("status", "--json", "--directory", str(short_path / "cluster")).stdout)
    assert {host["state"] for host in status["hosts"]} == {"up"}
    assert glmforge("down", "--directory", str(short_path / "cluster")).returncode == 0


@pytest.mark.parametrize(("which", "daemon"), [(0, "slurmctld of head"), (3, "sshd of head"), (4, "slurmd of node1")])
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


def test_an_unhealthy_node_is_drained_and_a_prolog_keeps_jobs_away(short_path: Path) -> None:
    check, prolog = short_path / "check", short_path / "prolog"
    drain = "scontrol update NodeName=$(hostname) State=DRAIN Reason=sick"
    check.write_text(f"#!/bin/sh\n[ ! -e {short_path}/sick-$(hostname) ] || {drain}\n")
    prolog.write_text(f"#!/bin/sh\nhostname >> {short_path}/prologs\n")
    for program in (check, prolog):
        program.chmod(0o755)
    options = DevOptions(nodes=2, gpus=0, prolog=prolog, health_check=check, health_check_interval_s=2)
    with development_cluster(short_path / "cluster", options) as dev:
        dev.slurm("srun", "-N2", "true")
        assert sorted((short_path / "prologs").read_text().split()) == ["node1", "node2"]
        (short_path / "sick-node2").touch()
        deadline = time.monotonic() + LIMIT_S
        while "sick" not in (drained := dev.slurm("sinfo", "-R", "-h")):
            assert time.monotonic() < deadline
            time.sleep(0.2)  # Slurm looks in its own time
        assert "node2" in drained
