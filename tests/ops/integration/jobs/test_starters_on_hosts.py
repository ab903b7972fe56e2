"""Ranks through ssh, on two hosts with names, addresses and links of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from glmforge.observe.job_records import AttemptDirectory
from glmforge_ops.dev import HEAD, DevCluster, DevOptions, development_cluster
from helpers.dev_cluster import hosts_or_skip
from helpers.ranks import ALL_REDUCE, PATIENCE_S, attempt_in, record, texts, until
from helpers.starting import ask, said, starting_command


def waiting(attempt: AttemptDirectory, trap: str) -> list[str]:
    """Says that it is there, and waits."""
    return ["bash", "-c", f"{trap}; echo ready; while :; do sleep 0.05; done", str(attempt.root)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    hosts_or_skip()
    options = DevOptions(nodes=2, slurm=False, mode="namespaces")
    with development_cluster(tmp_path_factory.mktemp("hosts") / "cluster", options) as running:
        yield running


@contextmanager
def started(
    cluster: DevCluster,
    attempt: AttemptDirectory,
    command: list[str],
    nodes: list[str],
    address: str = "10.0.0.1",
) -> Iterator["subprocess.Popen[str]"]:
    """A supervisor on the head; ended with the block."""
    ssh = " ".join(cluster.ssh_command)
    words = starting_command(attempt, "ssh", command, nodes, ssh=ssh, address=address)
    process = subprocess.Popen(
        cluster.command(HEAD, *words),
        env=cluster.environment_on(HEAD) | {"PATH": os.environ["PATH"]},
        start_new_session=True,
        text=True,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def status_of(process: "subprocess.Popen[str]", attempt: AttemptDirectory) -> int:
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (attempt.root / "status").exists(), errors + said(attempt)
    return int((attempt.root / "status").read_text().split()[0])


def test_four_ranks_reduce(cluster: DevCluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    nodes = ["node2", "node1"]
    address = cluster.run("node2", "hostname", "-I").stdout.split()[0]
    with started(cluster, attempt, [sys.executable, "-c", ALL_REDUCE], nodes, address) as process:
        assert status_of(process, attempt) == 0, said(attempt)
    for rank in range(4):
        words = texts(attempt, rank)[-1].split()
        assert words[:5] == ["sum", "10", f"RANK={rank}", f"LOCAL_RANK={rank % 2}", "LOCAL_WORLD_SIZE=2"]
        assert words[5:] == [f"NODE_RANK={rank // 2}", f"MASTER_ADDR={address}", "GLOO_SOCKET_IFNAME=eth0"]
        assert (record(attempt, rank).node, record(attempt, rank).host) == (nodes[rank // 2],) * 2


def processes_of(attempt: AttemptDirectory) -> list[int]:
    """The ranks' own processes, by the directory that their command names: hosts number processes for themselves."""
    return _found(lambda words: words[0] == b"bash" and str(attempt.root).encode() in words)


def wait_for_ranks(attempt: AttemptDirectory) -> None:
    until(lambda: all(texts(attempt, rank) for rank in range(4)), "the ranks")
    until(lambda: len(processes_of(attempt)) == 4, "all of them seen")  # not what they are just starting


def test_a_signal_reaches_every_rank(cluster: DevCluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    with started(cluster, attempt, waiting(attempt, "trap 'exit 75' USR1"), ["node1", "node2"]) as process:
        wait_for_ranks(attempt)
        ask(attempt, "USR1")
        assert status_of(process, attempt) == 75, said(attempt)
    assert [rank.status for rank in attempt.read_ranks()] == [75] * 4


def test_nothing_is_left_when_the_supervisor_is_killed(cluster: DevCluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    with started(cluster, attempt, waiting(attempt, "trap '' TERM"), ["node1", "node2"]) as process:
        wait_for_ranks(attempt)
        os.killpg(process.pid, signal.SIGKILL)
        until(lambda: not processes_of(attempt), "the ranks' end")


def _found(wanted: Callable[[list[bytes]], bool]) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if wanted((process / "cmdline").read_bytes().split(b"\0")):
                    found.append(int(process.name))
    return found


def test_killed_ranks_end(cluster: DevCluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    with started(cluster, attempt, waiting(attempt, "trap '' TERM"), ["node1", "node2"]) as process:
        wait_for_ranks(attempt)
        ask(attempt, "KILL")
        assert status_of(process, attempt) != 0
    assert not processes_of(attempt)


def test_a_node_that_cannot_be_reached_is_named_and_the_others_are_ended(cluster: DevCluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    with started(cluster, attempt, ["sleep", "1000"], ["node1", "nowhere"]) as process:
        assert status_of(process, attempt) == 255
    assert "Could not resolve hostname nowhere" in said(attempt)
    assert {rank.status for rank in attempt.read_ranks()} <= {-signal.SIGKILL}
