"""Ranks on this machine: through the starter as the supervisor uses it."""

import signal
import sys
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.starters.nodes import LocalStarter
from helpers.distributed import free_port
from helpers.ranks import ALL_REDUCE, assignment, attempt_in, ended, is_running, texts, until


def test_four_ranks_reduce(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = [sys.executable, "-c", ALL_REDUCE]
    ranks = assignment(command, ranks_per_node=4, port=free_port())
    assert ended(LocalStarter().start(attempt, ranks)) == 0
    assert [texts(attempt, rank)[-1].split()[:3] for rank in range(4)] == [["sum", "10", f"RANK={r}"] for r in range(4)]
    assert texts(attempt, 3)[-1].endswith("GLOO_SOCKET_IFNAME=lo")


def test_signals_and_status(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = ["bash", "-c", "trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done"]
    running = LocalStarter().start(attempt, assignment(command, ranks_per_node=2))
    until(lambda: all(texts(attempt, rank) for rank in range(2)), "the ranks")
    assert running.poll() is None
    running.signal(signal.SIGUSR1)
    assert ended(running) == 75


def test_kill_ends_every_process(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = ["bash", "-c", "trap '' TERM USR1; sleep 1000 & echo $!; echo $$; wait"]
    running = LocalStarter().start(attempt, assignment(command, ranks_per_node=2))
    until(lambda: all(len(texts(attempt, rank)) == 2 for rank in range(2)), "the ranks")
    pids = [int(text) for rank in range(2) for text in texts(attempt, rank)]
    assert all(map(is_running, pids))
    running.kill()
    assert not any(map(is_running, pids))
    assert running.poll() not in (None, 0)


def test_more_than_one_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="choose ssh"):
        LocalStarter().start(attempt_in(tmp_path), assignment(["true"], ["a", "b"]))
