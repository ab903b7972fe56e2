"""Ranks by srun, in a job on a real Slurm of two nodes: the right ranks at the right places, signals, and the end."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.launch.job import AttemptDirectory
from glmforge.launch.ranks.ports import reserve
from helpers.dev_cluster import Cluster, slurm_cluster
from helpers.ranks import ALL_REDUCE, PATIENCE_S, attempt_in, record, texts

_SUPERVISOR = """
import json, signal, sys, time
from pathlib import Path
from glmforge.launch.job import AttemptDirectory
from glmforge.launch.starters.base import Ranks
from glmforge.launch.starters.srun import SrunStarter

given = json.loads(Path(sys.argv[1]).read_text())
attempt = AttemptDirectory(Path(given.pop("directory")))
given["cwd"] = Path(given["cwd"])
running = SrunStarter().start(Ranks(directory=attempt, **given))
asked = set()
while (status := running.poll()) is None:
    for name in ("USR1", "INT", "kill"):
        if (attempt.root / f"ask-{name}").exists() and name not in asked:
            asked.add(name)
            running.kill() if name == "kill" else running.signal(signal.Signals["SIG" + name])
    time.sleep(0.05)
(attempt.root / "status").write_text(str(status))
"""
"""What a supervisor does with a starter, in the job: signals and the end come by files of the attempt."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        yield running


def submit(cluster: Cluster, attempt: AttemptDirectory, command: list[str], **changes: object) -> str:
    """The job whose batch script starts two ranks on each of its nodes; the last node is the first in order."""
    given = {
        "directory": str(attempt.root),
        "nodes": list(reversed(cluster.dev.nodes)),
        "ranks_per_node": 2,
        "command": command,
        "cwd": "/",
        "address": "127.0.0.1",
        "port": reserve(77),
        "cpus_per_task": 1,
        "grace_s": PATIENCE_S,
    } | changes
    program, orders, script = attempt.root / "supervisor.py", attempt.root / "given.json", attempt.root / "job.sh"
    program.write_text(_SUPERVISOR)
    orders.write_text(json.dumps(given))
    log = attempt.root / "job.log"
    # What a job's environment may say to srun, and must not.
    trap = {"SLURM_EXPORT_ENV": "NONE", "SLURM_NTASKS_PER_NODE": "1", "SLURM_DISTRIBUTION": "cyclic"}
    script.write_text(
        f"#!/bin/bash\nexport {' '.join(f'{name}={value}' for name, value in trap.items())}\n"
        f"exec {sys.executable} {program} {orders}\n"
    )
    return cluster.submit(["--nodes=2", "--ntasks=2", "--cpus-per-task=2", f"--output={log}", str(script)])


def status_of(cluster: Cluster, job: str, attempt: AttemptDirectory) -> int:
    ended = cluster.wait(job, PATIENCE_S)
    assert (attempt.root / "status").exists(), cluster.log_of(ended)
    return int((attempt.root / "status").read_text())


def test_four_ranks_reduce_in_the_order_that_was_given(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm's own order of nodes is another: rank 0 is where the others look for it all the same."""
    attempt = attempt_in(tmp_path)
    job = submit(cluster, attempt, [sys.executable, "-c", ALL_REDUCE])
    assert status_of(cluster, job, attempt) == 0, (attempt.root / "starter.log").read_text()
    for rank in range(4):
        words = f"sum 10 RANK={rank} LOCAL_RANK={rank % 2} LOCAL_WORLD_SIZE=2 NODE_RANK={rank // 2}"
        assert texts(attempt, rank)[-1].startswith(words)
        assert record(attempt, rank).node == list(reversed(cluster.dev.nodes))[rank // 2]


def test_a_warning_reaches_every_rank_and_the_status_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = ["bash", "-c", "trap 'exit 75' USR1; echo ready; while :; do sleep 0.05; done"]
    job = submit(cluster, attempt, command)
    cluster.poll(job, lambda: all(texts(attempt, rank) for rank in range(4)), PATIENCE_S)
    (attempt.root / "ask-USR1").touch()
    assert status_of(cluster, job, attempt) == 75
    assert {rank.status for rank in attempt.read_ranks()} == {75}


def test_killed_ranks_end(cluster: Cluster, tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    command = ["bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]
    job = submit(cluster, attempt, command)
    cluster.poll(job, lambda: all(texts(attempt, rank) for rank in range(4)), PATIENCE_S)
    (attempt.root / "ask-kill").touch()
    assert status_of(cluster, job, attempt) != 0


def test_one_failure_and_the_others_grace(cluster: Cluster, tmp_path: Path) -> None:
    """The others end by themselves, and are not killed by srun before they have."""
    attempt = attempt_in(tmp_path)
    go_on = attempt.root / "first-failure.json"
    command = ["bash", "-c", f'[ "$RANK" = 2 ] && exit 9; until [ -s {go_on} ]; do sleep 0.05; done; echo saved']
    job = submit(cluster, attempt, command)
    assert status_of(cluster, job, attempt) == 9
    assert [rank.status for rank in attempt.read_ranks()] == [0, 0, 9, 0]
    assert texts(attempt, 3) == ["saved"]
