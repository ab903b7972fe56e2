"""Which process is that, and does it still live?

A process id alone says little: ids are used again, and every machine and every container has its own. So a process is
known by the machine's boot, its namespace of process ids, its id, and when it began. Of a process of this machine the
kernel then tells for certain whether it lives; of any other nobody here can tell.
"""

import os
import socket
from pathlib import Path

from pydantic import BaseModel

_PROC = Path("/proc")
_DEAD_STATES = {"Z", "X", "x"}
_SUSPENDED_STATES = {"T", "t"}


class ProcessIdentity(BaseModel):
    """A process among those of all machines. `boot` and `namespace` are empty, `began` is 0 where there is no /proc."""

    host: str
    boot: str
    namespace: str
    pid: int
    began: int
    """Clock ticks from the machine's boot to its start."""
    job: str = ""
    """The batch job that it is part of, in words; empty if there is none."""

    def __str__(self) -> str:
        job = f", {self.job}" if self.job else ""
        return f"{self.host} (process {self.pid}{job})"


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    return identify(os.getpid()).model_copy(update={"job": _job()})


def identify(pid: int) -> ProcessIdentity:
    """The identity of the process of this machine that has this id now."""
    state_and_start = _state_and_start(pid)
    return ProcessIdentity(
        host=socket.gethostname(),
        boot=_boot(),
        namespace=_namespace(),
        pid=pid,
        began=state_and_start[1] if state_and_start else 0,
    )


def is_alive(process: ProcessIdentity) -> bool | None:
    """Whether it lives; None if it is not of this machine (or of another container), so that nobody can tell.

    A suspended process lives.
    """
    if not _is_of_this_machine(process):
        return None
    if not process.boot:  # no /proc: its start is not known either
        return _is_signalled(process.pid)
    found = _state_and_start(process.pid)
    return found is not None and found[0] not in _DEAD_STATES and found[1] == process.began


def is_suspended(process: ProcessIdentity) -> bool:
    """Whether it is a process of this machine that was stopped and can be continued."""
    found = _state_and_start(process.pid) if is_alive(process) else None
    return found is not None and found[0] in _SUSPENDED_STATES


def _job() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    return f"Slurm job {job}" if job else ""


def _is_of_this_machine(process: ProcessIdentity) -> bool:
    if not process.boot:
        return process.host == socket.gethostname() and not _boot()
    return (process.boot, process.namespace) == (_boot(), _namespace())


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """The third and the twenty-second field of /proc/<pid>/stat; None if there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[19])


def _is_signalled(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # alive, and of another user
        return True
    return True
