"""What happens to a launched job's processes, nodes, network, storage and scheduler, one kind of it per function.

A fault is struck while the job trains, and gives what mends it again: that is called once the job has got over it, or
when it is over.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glmforge.checkpoint.format.store import list_checkpoints
from glmforge.errors import HostError
from glmforge_ops.dev.options import HEAD
from glmforge_ops.dev.packages import find
from helpers.chaos import filled
from helpers.launched import LIMIT_S, Launched, fail_prolog

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


def cut_link(job: Launched) -> Mend:
    """Of a node without the supervisor; it is whole again when the job has noticed."""
    dev, attempt = job.cluster.dev, job.attempt
    node = _other_node(job)
    dev.cut(node)
    job.wait_until(lambda: any(event["attempt"] >= attempt for event in job.events("attempt ended")))
    dev.heal(node)
    return _nothing


def restart_controller(job: Launched) -> Mend:
    """Killed, and started again."""
    kill_controller(job)
    start_controller(job)
    return _nothing


def kill_rank_without_controller(job: Launched) -> Mend:
    """Slurm's controller is down until the supervisor, which can start nothing, waits for it.

    One that has just started again may refuse a step, for it takes the last one's memory for in use.
    """
    waited = len(_waits(job))
    kill_controller(job)
    job.signal_rank(1, "KILL")
    job.wait_until(lambda: len(_waits(job)) > waited)
    start_controller(job)
    return _nothing


def _waits(job: Launched) -> list[object]:
    return [event for event in job.events("decided") if event["do"] == "wait"]


def kill_controller(job: Launched) -> None:
    dev = job.cluster.dev
    old = dev.run(HEAD, "pidof", "slurmctld").stdout.split()
    dev.run(HEAD, "kill", "-KILL", *old)
    _wait(lambda: not set(old) & set(dev.run(HEAD, "pidof", "slurmctld", check=False).stdout.split()))


def start_controller(job: Launched) -> None:
    dev = job.cluster.dev
    dev.run(HEAD, find("slurmctld") or "slurmctld", "-f", str(dev.places.slurm_conf))
    _wait(lambda: "UP" in _ask(job, "scontrol", "ping"))


def kill_slurmd(job: Launched) -> Mend:
    """Of a node without the supervisor: its tasks go on, without anybody who could end them."""
    dev = job.cluster.dev
    node = next(node for node in reversed(job.nodes) if has_slurmd(job, node) and node != job.batch_node())
    dev.run(node, "kill", "-KILL", *slurmd_of(job, node))

    def start() -> None:
        if not job.is_up(node):  # it has been killed since, and comes back with a slurmd
            return
        start_slurmd(job, node)
        _wait(lambda: re.search(r"State=(IDLE|MIXED|ALLOCATED)\b[^*]", _ask(job, "scontrol", "show", "node", node)))

    return start


def start_slurmd(job: Launched, node: str) -> None:
    dev = job.cluster.dev
    dev.run(node, find("slurmd") or "slurmd", "-N", node, "-f", str(dev.places.slurm_conf))


def has_slurmd(job: Launched, node: str) -> bool:
    """Whether the host is up, and it runs there."""
    return job.is_up(node) and bool(slurmd_of(job, node))


def slurmd_of(job: Launched, node: str) -> list[str]:
    return job.cluster.dev.run(node, "pidof", "slurmd", check=False).stdout.split()


def drain_node(job: Launched) -> Mend:
    """Slurm gives it no new jobs; those that run go on."""
    node = job.nodes[-1]
    job.cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    return lambda: _undrain(job, node)


def _undrain(job: Launched, node: str) -> None:
    job.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")


def requeue(job: Launched) -> Mend:
    """By hand."""
    job.cluster.run("scontrol", "requeue", job.number)
    return _nothing


def fail_prolog_of_a_node(job: Launched) -> Mend:
    """Of the next start: Slurm drains the node, and holds the job."""
    node = job.nodes[-1]
    failing = fail_prolog(job.cluster, node)
    job.cluster.run("scontrol", "requeue", job.number)

    def mend() -> None:
        failing.unlink()
        _undrain(job, node)

    return mend


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


def fill_disk(job: Launched) -> Mend:
    """There is no room for a checkpoint, until one has failed; then there is, and a rank is killed."""
    disk = (job.config.output_dir / "checkpoints").resolve().parent
    failed, saved = (len(job.run_events(name)) for name in ("save failed", "saved"))
    with filled(disk, disk / "ballast"):
        job.wait_until(lambda: len(job.run_events("save failed")) > failed)
    job.wait_until(lambda: len(job.run_events("saved")) > saved)
    return kill_rank(job)


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


def _ask(job: Launched, *command: str) -> str:
    return job.cluster.dev.run(HEAD, *command, check=False).stdout


def _wait(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)  # looks at what other processes have done; the outcome does not depend on it


_KILLED = frozenset({"machine"})
_LOST = frozenset({"node lost", "unknown"})
_GAVE_WAY = frozenset({"preempted", "time limit"})
_REQUEUED = _GAVE_WAY | {"unknown"}
"""Slurm gives a requeued job 30 s (KillWait) to save, and its supervisor to say so: not enough on a busy machine."""

FAULTS = {
    "rank killed": Fault(kill_rank, _KILLED),
    "node killed": Fault(kill_node, _LOST),
    "supervisor's node killed": Fault(kill_batch_node, _LOST),
    "corrupt checkpoint": Fault(corrupt_newest, _KILLED),
    "full disk": Fault(fill_disk, _KILLED),
    "rank stopped": Fault(stop_rank, frozenset({"hang"})),
    "link cut": Fault(cut_link, _LOST),
    "slurmctld restarted": Fault(restart_controller),
    "rank killed without slurmctld": Fault(kill_rank_without_controller, _KILLED | {"unknown"}, attempts=2),
    "slurmd killed": Fault(kill_slurmd, _LOST),
    "node drained": Fault(drain_node),
    "requeued": Fault(requeue, _REQUEUED),
    "prolog fails": Fault(fail_prolog_of_a_node, _REQUEUED),
    "preempted": Fault(preempt, _GAVE_WAY),
    "time limit": Fault(reach_time_limit, _GAVE_WAY),
}
