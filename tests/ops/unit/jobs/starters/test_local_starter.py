"""Ranks on this machine: through the starter as the supervisor uses it."""

import signal
import socket
import sys
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.ranks.ports import reserve
from glmforge_ops.jobs.starters.local import LocalStarter
from glmforge_ops.jobs.starters.torchrun import TorchrunStarter
from helpers.ranks import ALL_REDUCE, attempt_in, ended, is_running, ranks_of, record, texts, until


def test_four_ranks_reduce(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = [sys.executable, "-c", ALL_REDUCE]
    ranks = ranks_of(attempt, command, ["me"], ranks_per_node=4, port=reserve(41))
    assert ended(LocalStarter().start(ranks)) == 0
    assert [texts(attempt, rank)[-1].split()[:3] for rank in range(4)] == [["sum", "10", f"RANK={r}"] for r in range(4)]
    assert texts(attempt, 3)[-1].endswith("GLOO_SOCKET_IFNAME=lo")


def test_signals_and_status(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = ["bash", "-c", "trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done"]
    running = LocalStarter().start(ranks_of(attempt, command, ["me"]))
    until(lambda: all(texts(attempt, rank) for rank in range(2)), "the ranks")
    assert running.poll() is None
    running.signal(signal.SIGUSR1)
    assert ended(running) == 75


def test_kill_ends_every_process(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = ["bash", "-c", "trap '' TERM USR1; sleep 1000 & echo $!; echo $$; wait"]
    running = LocalStarter().start(ranks_of(attempt, command, ["me"]))
    until(lambda: all(len(texts(attempt, rank)) == 2 for rank in range(2)), "the ranks")
    pids = [int(text) for rank in range(2) for text in texts(attempt, rank)]
    assert all(map(is_running, pids))
    running.kill()
    assert not any(map(is_running, pids))
    assert running.poll() not in (None, 0)


def test_after_a_failure_the_others_have_their_grace_and_no_more(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    deaf = tmp_path / "deaf"  # the other one is deaf to SIGTERM by then
    fails = f'if [ "$RANK" = 0 ]; then until [ -e {deaf} ]; do sleep 0.01; done; exit 3; fi'
    command = ["bash", "-c", f'{fails}; trap "" TERM; touch {deaf}; while :; do sleep 0.01; done']
    running = LocalStarter().start(ranks_of(attempt, command, ["me"], grace_s=0.5))
    assert ended(running) == 3
    assert [record(attempt, rank).status for rank in range(2)] == [3, -signal.SIGKILL]


def test_more_than_one_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="choose ssh"):
        LocalStarter().start(ranks_of(attempt_in(tmp_path), ["true"], ["a", "b"]))


def test_torchrun_starts_the_ranks_of_this_machine_by_its_own_name(tmp_path: Path) -> None:
    """Without ssh, and with the ranks' own logs and records."""
    attempt = attempt_in(tmp_path)
    command = ["bash", "-c", "echo $RANK of $WORLD_SIZE, $TORCHELASTIC_RUN_ID"]
    ranks = ranks_of(attempt, command, [socket.gethostname()], port=reserve(42))
    assert ended(TorchrunStarter().start(ranks)) == 0
    assert [texts(attempt, rank)[-1].split(",")[0] for rank in range(2)] == ["0 of 2", "1 of 2"]
    assert [record(attempt, rank).status for rank in range(2)] == [0, 0]
