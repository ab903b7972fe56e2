"""What happens to a launched job's processes, nodes, network, storage and scheduler, one kind of it per function.

A fault is struck while the job trains, and gives what mends it again: that is called once the job has got over it, or
when it is over.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glmforge.checkpoint.format.store import list_checkpoints
from glmforge.errors import HostError
from helpers.launched import Launched

Mend = Callable[[], None]


def _nothing() -> None:
    """It needs no mending."""


@dataclass(frozen=True)
class Fault:
    """
    Attributes:
        strike: does it, and gives what mends it.
        causes: that the supervisor may find for the attempt that it ends; empty: it goes on.
        attempts: that may fail, at most.
    """

    strike: Callable[[Launched], Mend]
    causes: frozenset[str] = frozenset()
    attempts: int = 1


def kill_rank(job: Launched) -> Mend:
    job.signal_rank(1, "KILL")
    return _nothing


def stop_rank(job: Launched) -> Mend:
    """It answers nobody any more, and the others wait for it."""
    job.signal_rank(1, "STOP")
    return _nothing


def kill_node(job: Launched) -> Mend:
    """The last of the job's nodes, with everything on it."""
    return _fail(job, _other_node(job))


def kill_batch_node(job: Launched) -> Mend:
    """That on which the supervisor runs."""
    return _fail(job, job.batch_node())


def _other_node(job: Launched) -> str:
    """The last of the job's nodes that is up and has not the supervisor on it."""
    batch = job.batch_node()
    return next(node for node in reversed(job.nodes) if node != batch and job.is_up(node))


def _fail(job: Launched, node: str) -> Mend:
    dev = job.cluster.dev
    dev.fail(node)
    return lambda: dev.heal(node)


def preempt(job: Launched) -> Mend:
    """By a more urgent job on all nodes, which is over at once."""
    size = [f"--nodes={len(job.cluster.dev.nodes)}", "--exclusive", "--output=/dev/null"]
    job.cluster.submit(["--partition=urgent", *size, "--wrap=true"])
    return _nothing


def reach_time_limit(job: Launched) -> Mend:
    """Slurm warns before the end, which comes within a minute or two."""
    began = time.time()
    ran_s = began - job.files.read_attempts()[0].began.timestamp()
    job.cluster.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={int(ran_s // 60) + 2}")
    return lambda: job.cluster.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=60") and None


def corrupt_newest(job: Launched) -> Mend:
    """A bit of the newest checkpoint is another, and a rank is killed."""
    checkpoints = job.config.output_dir / "checkpoints"
    job.wait_until(lambda: len(list_checkpoints(checkpoints)) >= 2)
    for number in (0, 1):
        job.signal_rank(number, "STOP")  # so that nothing newer comes
    newest = list_checkpoints(checkpoints)[0]
    flip_a_bit(max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size))
    for number in (0, 1):
        with suppress(HostError):
            job.signal_rank(number, "KILL")
    return _nothing


def flip_a_bit(file: Path) -> None:
    with file.open("r+b") as opened:
        middle = os.fstat(opened.fileno()).st_size // 2
        opened.seek(middle)
        byte = opened.read(1)[0]
        opened.seek(middle)
        opened.write(bytes([byte ^ 1]))


_KILLED = frozenset({"machine"})
_LOST = frozenset({"node lost", "unknown"})
_GAVE_WAY = frozenset({"preempted", "time limit"})

FAULTS = {
    "rank killed": Fault(kill_rank, _KILLED),
    "node killed": Fault(kill_node, _LOST),
    "supervisor's node killed": Fault(kill_batch_node, _LOST),
    "rank stopped": Fault(stop_rank, frozenset({"hang"})),
    "corrupt checkpoint": Fault(corrupt_newest, _KILLED),
    "preempted": Fault(preempt, _GAVE_WAY),
    "time limit": Fault(reach_time_limit, _GAVE_WAY),
}
