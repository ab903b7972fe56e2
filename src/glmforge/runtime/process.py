"""Which process is that, and does it still live?

A process is known by the machine's boot, its namespace of process ids, its id, and when it began (see `traces`). Of a
process of this machine the kernel then tells for certain whether it lives; of any other nobody here can tell.
"""

import os
import socket

from pydantic import BaseModel

from glmforge.runtime.traces import boot, lives, namespace, start, state_and_start

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
    """The batch job that it is part of, in words; empty without one."""

    def __str__(self) -> str:
        job = f", {self.job}" if self.job else ""
        return f"{self.host} (process {self.pid}{job})"


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    job = os.environ.get("SLURM_JOB_ID")
    return identify(os.getpid()).model_copy(update={"job": f"Slurm job {job}" if job else ""})


def identify(pid: int) -> ProcessIdentity:
    """The identity of the process of this machine that has this id now."""
    host = socket.gethostname()
    return ProcessIdentity(host=host, boot=boot(), namespace=namespace(), pid=pid, began=start(pid))


def is_alive(process: ProcessIdentity) -> bool | None:
    """Whether it lives; None if it is not of this machine (or of another container), so that nobody can tell.

    A suspended process lives.
    """
    if not process.boot and not boot() and process.host == socket.gethostname():  # no /proc: its start is not known
        return _is_signalled(process.pid)
    if not process.boot or (process.boot, process.namespace) != (boot(), namespace()):
        return None
    return lives(process.pid, process.began)


def is_suspended(process: ProcessIdentity) -> bool:
    """Whether it is a process of this machine that was stopped and can be continued."""
    found = state_and_start(process.pid) if is_alive(process) else None
    return found is not None and found[0] in _SUSPENDED_STATES


def _is_signalled(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # alive, and of another user
        return True
    return True
