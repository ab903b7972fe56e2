"""Ranks by srun, in a job on a real Slurm of two nodes: places, signals, and the end."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.observe.job_records import AttemptDirectory
from helpers.dev_cluster import Cluster, slurm_cluster
from helpers.ranks import ALL_REDUCE, PATIENCE_S, attempt_in, record, texts
from helpers.starting import ask, said, starting_command

# What a job's environment may say to srun, and must not.
_TRAPS = "SLURM_EXPORT_ENV=NONE SLURM_NTASKS_PER_NODE=1 SLURM_DISTRIBUTION=cyclic SLURM_NTASKS=1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as running:
        yield running


def submit(cluster: Cluster, attempt: AttemptDirectory, command: list[str]) -> str:
    """A job whose batch script starts two ranks on each of its nodes; the last node is the first in order."""
    nodes = list(reversed(cluster.dev.nodes))
    words = starting_command(attempt, "srun", command, nodes)
    script = attempt.root / "job.sh"
    script.write_text(f"#!/bin/bash\nexport {_TRAPS}\nexec {' '.join(words)}\n")
    log = attempt.root / "job.log"
    return cluster.submit(["--nodes=2", "--ntasks=2", "--cpus-per-task=2", f"--output={log}", str(script)])


def status_of(cluster: Cluster, job: str, attempt: AttemptDirectory) -> int:
    cluster.wait(job, PATIENCE_S)
    assert (attempt.root / "status").exists(), said(attempt)
    return int((attempt.root / "status").read_text().split()[0])


def wait_for_ranks(cluster: Cluster, job: str, attempt: AttemptDirectory) -> None:
    cluster.poll(job, lambda: all(texts(attempt, rank) for rank in range(4)), PATIENCE_S)


def test_four_ranks_reduce_in_the_order_that_was_given(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm's own order of nodes is another: rank 0 is where the others look for it all the same."""
    attempt = attempt_in(tmp_path)
    job = submit(cluster, attempt, [sys.executable, "-c", ALL_REDUCE])
    assert status_of(cluster, job, attempt) == 0, said(attempt)
    for rank in range(4):
        words = f"sum 10 RANK={rank} LOCAL_RANK={rank % 2} LOCAL_WORLD_SIZE=2 NODE_RANK={rank // 2}"
        assert texts(attempt, rank)[-1].startswith(words)
        assert record(attempt, rank).node == list(reversed(cluster.dev.nodes))[rank // 2]


def test_a_warning_reaches_every_rank(cluster: Cluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = ["bash", "-c", "trap 'exit 75' USR1; echo ready; while :; do sleep 0.05; done"]
    job = submit(cluster, attempt, command)
    wait_for_ranks(cluster, job, attempt)
    ask(attempt, "USR1")
    assert status_of(cluster, job, attempt) == 75, said(attempt)
    assert [rank.status for rank in attempt.read_ranks()] == [75] * 4


def test_killed_ranks_end(cluster: Cluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    job = submit(cluster, attempt, ["bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
    wait_for_ranks(cluster, job, attempt)
    ask(attempt, "KILL")
    assert status_of(cluster, job, attempt) != 0


def test_after_one_failure_the_others_go_on(cluster: Cluster, tmp_path: Path) -> None:
    """They end by themselves, and are not killed by srun before they have."""
    attempt = attempt_in(tmp_path)
    failed = f"grep -qs '\"status\": 9' {attempt.rank(2)}"
    script = f'[ "$RANK" = 2 ] && exit 9; until {failed}; do sleep 0.05; done; echo saved'
    job = submit(cluster, attempt, ["bash", "-c", script])
    assert status_of(cluster, job, attempt) == 9
    assert [rank.status for rank in attempt.read_ranks()] == [0, 0, 9, 0]
    assert texts(attempt, 3) == ["saved"]
