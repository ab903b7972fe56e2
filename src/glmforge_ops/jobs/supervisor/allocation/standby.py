"""Somebody on another node who notices that the supervisor's own node has gone.

The supervisor is the job's batch script, and the job keeps its other nodes when one dies (`--no-kill`), since that is
what a warm restart needs. But when the node that dies is the script's, Slurm 22.05 keeps the job as well: it stays
"running" on the nodes that are left, without anything that would go on, until its time is over. So a step of one task
on another node of the job watches the supervisor's lease and, when that shows no sign of life and Slurm does not reach
the node either, does what Slurm would have done without `--no-kill`: it requeues the job.

The standby's own node may go first. So the supervisor looks after it in turn, and starts another on a node that is
left.

    python -m glmforge_ops.jobs.supervisor.allocation.standby JOBDIR
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from glmforge.errors import HostError
from glmforge.observe.job_records import SUPERVISOR_LEASE, JobDirectory
from glmforge.observe.record_files import RunFileError
from glmforge.runtime.lease import LastChange, Lease
from glmforge_ops.hosts.machines import ask_slurm
from glmforge_ops.jobs.supervisor.allocation.lost_nodes import lost_nodes
from glmforge_ops.jobs.supervisor.allocation.run_lock import RunLock, run_locks

SILENT_S = 30.0
"""Without a heartbeat of the supervisor, which comes every two seconds."""

_LOOK_S = 2.0
_END_S = 10.0
_RENEW_S = 30.0
"""Between two looks at the standby."""


class Standby:
    """Watches one supervisor. `lost` says of a node whether Slurm has lost it."""

    def __init__(self, job: JobDirectory, lost: Callable[[str], bool], silent_s: float = SILENT_S) -> None:
        self.job, self.lost, self.silent_s = job, lost, silent_s
        self._lease, self._change = Lease(job.root, "standby", name=SUPERVISOR_LEASE), LastChange()
        self._claim = b""

    def look(self, batch_node: str) -> bool:
        """Whether the supervisor has gone with its node."""
        return self.is_silent() and self.lost(batch_node)

    def is_silent(self) -> bool:
        """Whether its last heartbeat is too long ago."""
        with suppress(OSError):  # what cannot be read has not changed
            self._claim = self._lease.newest().content
        return self._change.seconds_since(self._claim) >= self.silent_s


class StandbyStep:
    """A step with a standby, on another node as soon as its own is lost.

    Args:
        nodes: those that the job has now.
        lost: which of some nodes Slurm does not reach.
        start: starts a standby on a node.
    """

    def __init__(
        self,
        nodes: Callable[[], Sequence[str]],
        lost: Callable[[Sequence[str]], Mapping[str, str]],
        start: Callable[[str], "subprocess.Popen[bytes]"],
        own_node: str,
    ) -> None:
        self._nodes, self._lost, self._start, self._own = nodes, lost, start, own_node
        self._process: subprocess.Popen[bytes] | None = None
        self.node = ""

    def renew(self) -> None:
        """Start one if there is none that could do its work. Raises `HostError` if Slurm does not answer."""
        runs = self._process is not None and self._process.poll() is None
        if runs and not self._lost([self.node]):
            return
        self.end()
        others = [node for node in self._nodes() if node != self._own]
        lost = self._lost(others)
        left = [node for node in others if node not in lost]
        # Where one has just ended another may end as well.
        chosen = [node for node in left if node != self.node] or left
        if chosen:
            self.node = chosen[-1]
            self._process = self._start(self.node)

    def end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # srun waits for a node that does not answer
            self._process.kill()
            self._process.wait()
        self._process = None


@contextmanager
def standby(root: Path, names: Sequence[str], nodes: Callable[[], Sequence[str]]) -> Iterator[None]:
    """A standby on another node of the job, within the block; none in a job of one node."""
    if len(names) < 2:
        yield
        return
    own_node = os.environ.get("SLURMD_NODENAME", names[0])
    step = StandbyStep(nodes, lost_nodes, lambda node: _start_on(node, root), own_node)
    over = threading.Event()

    def keep() -> None:
        while True:
            with suppress(HostError):  # the controller may be down for a while
                step.renew()
            if over.wait(_RENEW_S):
                return

    thread = threading.Thread(target=keep, name="standby", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)
        step.end()


def _start_on(node: str, root: Path) -> "subprocess.Popen[bytes]":
    # A step of its own, which Slurm does not end with the node of the srun that started it.
    options = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--export=ALL", "--input=none"]
    program = [sys.executable, "-m", "glmforge_ops.jobs.supervisor.allocation.standby", str(root)]
    return subprocess.Popen(
        ["srun", "--job-name=standby", *options, *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def watch(job: JobDirectory, number: str) -> None:
    """Comes back when the job is over, or was requeued."""
    watching, noted, over = Standby(job, _is_lost, SILENT_S), False, threading.Event()
    locks = run_locks(job, lambda *_: None)
    # The run may lie on storage that hangs while the job's own does not.
    threading.Thread(target=_look_at, args=(locks, over), name="locks", daemon=True).start()
    try:
        while True:
            time.sleep(_LOOK_S)
            # Slurm is asked only about a supervisor that is silent.
            batch_node = _batch_node(number) if watching.is_silent() else None
            if batch_node is None or not watching.look(batch_node):
                continue
            if not noted:
                noted = _note(job, batch_node, [lock.seen() for lock in locks])
            with suppress(HostError):
                ask_slurm("scontrol", "requeue", number)
                return
    finally:
        over.set()


def _look_at(locks: Sequence[RunLock], over: threading.Event) -> None:
    while not over.wait(_LOOK_S):
        for lock in locks:
            lock.look()


def _note(job: JobDirectory, node: str, locks: list[dict[str, str | float]]) -> bool:
    """Whether that could be written: not on a full disk, which is no reason to leave the job as it is."""
    why = "the supervisor's node was lost: the scheduler is asked to queue the job again"
    try:
        job.event("node lost", f"{node} was lost, and the supervisor with it", node=node)
        job.event("requeued", why, locks=locks)
    except RunFileError:
        return False
    return True


def _batch_node(number: str) -> str | None:
    """None while Slurm does not say."""
    with suppress(HostError):
        found = re.search(r"\bBatchHost=(\S+)", ask_slurm("scontrol", "show", "job", "--oneliner", number))
        return found[1] if found is not None else None
    return None


def _is_lost(node: str) -> bool:
    with suppress(HostError):
        return bool(lost_nodes([node]))
    return False


if __name__ == "__main__":
    watch(JobDirectory(Path(sys.argv[1])), os.environ["SLURM_JOB_ID"])
