"""Somebody on another node who notices that the supervisor's own node has gone.

The supervisor is the job's batch script, and the job keeps its other nodes when one dies (`--no-kill`), since that is
what a warm restart needs. But when the node that dies is the script's, Slurm 22.05 keeps the job as well: it stays
"running" on the nodes that are left, without anything that would go on, until its time is over. So a step of one task
on another node of the job watches the supervisor's lease and, when that shows no sign of life and Slurm does not reach
the node either, does what Slurm would have done without `--no-kill`: it requeues the job.

    python -m glmforge.launch.supervisor.standby JOBDIR
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from glmforge.cluster.hosts.machines import ask_slurm
from glmforge.errors import HostError
from glmforge.launch.job import JobDirectory
from glmforge.launch.supervisor.lost_nodes import lost_nodes

LEASE = ".supervisor"
"""The directory of the supervisor's claims, in the job's."""

SILENT_S = 30.0
"""Without a heartbeat of the supervisor, which comes every two seconds."""

_LOOK_S = 2.0
_END_S = 10.0


class Standby:
    """Watches one supervisor. `lost` says of a node whether Slurm has lost it."""

    def __init__(self, job: JobDirectory, lost: Callable[[str], bool], silent_s: float = SILENT_S) -> None:
        self.job, self.lost, self.silent_s = job, lost, silent_s
        self._seen: bytes | None = None
        self._since = time.monotonic()

    def look(self, batch_node: str) -> bool:
        """Whether the supervisor has gone with its node."""
        now = self._newest_claim()
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        return time.monotonic() - self._since >= self.silent_s and self.lost(batch_node)

    def _newest_claim(self) -> bytes:
        with suppress(OSError, ValueError):
            claims = [path for path in (self.job.root / LEASE).iterdir() if path.name.isdecimal()]
            return max(claims, key=lambda path: int(path.name)).read_bytes()
        return b""


@contextmanager
def standby(root: Path, nodes: Sequence[str]) -> Iterator[None]:
    """A standby on the last of `nodes`, within the block; none in a job of one node."""
    if len(nodes) < 2:
        yield
        return
    # A step of its own, which Slurm does not end with the node of the srun that started it.
    options = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={nodes[-1]}", "--export=ALL", "--input=none"]
    program = [sys.executable, "-m", "glmforge.launch.supervisor.standby", str(root)]
    process = subprocess.Popen(
        ["srun", "--job-name=standby", *options, *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def watch(job: JobDirectory, number: str) -> None:
    """Comes back when the job is over, or was requeued."""
    watching = Standby(job, _is_lost)
    while True:
        time.sleep(_LOOK_S)
        batch_node = _batch_node(number)
        if batch_node is not None and watching.look(batch_node):
            job.event("node lost", f"{batch_node} was lost, and the supervisor with it", node=batch_node)
            job.event("requeued", "the supervisor's node was lost: the scheduler is asked to queue the job again")
            with suppress(HostError):
                ask_slurm("scontrol", "requeue", number)
                return


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
    import os

    watch(JobDirectory(Path(sys.argv[1])), os.environ["SLURM_JOB_ID"])
