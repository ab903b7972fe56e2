"""Ranks in tests: attempts in temporary directories, programs that show what a rank was given, and patience."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glmforge.observe.job_records import AttemptDirectory, RankRecord
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.starters.base import Running

PATIENCE_S = 120.0

ALL_REDUCE = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
values = torch.tensor([float(rank + 1), 1.0])
dist.all_reduce(values)
assert values.tolist() == [world * (world + 1) / 2, world], values
names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
print("sum", int(values[0]), *(f"{name}={os.environ[name]}" for name in names))
dist.barrier()
dist.destroy_process_group()
"""
"""Every rank prints the sum of all ranks' numbers, counted from 1, and who it is."""


def assignment(command: Sequence[str], nodes: Sequence[str] = ("here",), **changes: Any) -> Assignment:
    """One rank on each node, which runs `command`."""
    given: dict[str, Any] = {
        "cwd": "/",
        "ranks_per_node": 1,
        "address": "127.0.0.1",
        "port": 29_999,
        "cpus_per_task": 1,
        "grace_s": PATIENCE_S,
    }
    return Assignment(command=list(command), nodes=list(nodes), **(given | changes))


def attempt_in(directory: Path, number: int = 1) -> AttemptDirectory:
    attempt = AttemptDirectory(directory / "attempts" / f"{number:04d}")
    attempt.root.mkdir(parents=True)
    return attempt


def start_node(
    attempt: AttemptDirectory, given: Assignment, *arguments: str, **options: Any
) -> subprocess.Popen[bytes]:
    """`glmforge_ops.jobs.ranks` for all ranks of the first node."""
    given.write(attempt.root)
    command = [sys.executable, "-P", "-m", "glmforge_ops.jobs.ranks", str(attempt.root), "--node", "0", *arguments]
    return subprocess.Popen(command, **options)


def run_node(attempt: AttemptDirectory, given: Assignment) -> int:
    """Its status."""
    return start_node(attempt, given).wait(PATIENCE_S)


def texts(attempt: AttemptDirectory, rank: int = 0) -> list[str]:
    """What the rank has printed so far, without time, rank and step."""
    log = attempt.log(rank)
    return [line.split(" ", 3)[3] for line in log.read_text().splitlines()] if log.exists() else []


def record(attempt: AttemptDirectory, rank: int = 0) -> RankRecord:
    found = RankRecord.read(attempt.rank(rank))
    assert found is not None
    return found


def until(reached: Callable[[], bool], what: str = "it") -> None:
    """Wait for what other processes do; a test fails if it does not come in `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, f"{what}: not reached in {PATIENCE_S:g} s"
        time.sleep(0.02)


def ended(running: Running) -> int:
    """The status of running ranks when they have ended."""
    status: list[int] = []

    def look() -> bool:
        found = running.poll()
        status.extend([] if found is None else [found])
        return bool(status)

    until(look, "the ranks' end")
    return status[0]


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
