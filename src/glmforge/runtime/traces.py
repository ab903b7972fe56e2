"""Processes as the kernel knows them, and a note on the node of which of them works there.

    /tmp/glmforge-<uid>/<pid>-<began>.json

A process id alone says little: ids are used again. With the machine's boot, the namespace of process ids (a container
has its own) and when it began, a process is certain. A rank of a training run leaves such a note while it lives. One
that was killed leaves its note behind, and then it is certain whose files with its id in their names were:
`glmforge cluster clean` reads the notes. The directory is its user's alone; another's is not believed.

Standard library only: `cluster clean` sends this module to nodes. Not psutil: that gives the start of a process as a
time of the clock, which is set now and then; notes and locks hold the kernel's own count of ticks.
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import contextmanager, suppress
from pathlib import Path

TYPE_CHECKING = False  # as in typing, whose import takes long
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ABOVE = Path("/tmp")
"""Where notes lie; not the user's TMPDIR: whoever cleans must find it."""

_DEAD = "ZXx"
_MAX_BYTES = 1 << 16


def directory_of_traces(above: Path) -> Path:
    """Where this user's notes lie."""
    return above / f"glmforge-{os.geteuid()}"


def is_private(directory: Path) -> bool:
    """Whether it is a directory that only this user can have put something in."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


@contextmanager
def leave_trace(what: str, run: Path) -> Iterator[None]:
    """Note within the block that this process does `what` for `run`. Where that is not possible, there is no note."""
    file = _write(what, run)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                file.unlink()


def scratch_prefix(purpose: str) -> str:
    """Of the name of a temporary directory: whose it is, to whoever finds it when this process is gone."""
    return f"glmforge-{purpose}-{boot()[:8]}-{re.sub(r'[^0-9]', '', namespace())}-{os.getpid()}-{start(os.getpid())}-"


def read_traces(above: Path) -> dict[Path, dict[str, Any]]:
    """The notes of this boot and namespace, by file; others tell nothing that could be looked up here."""
    directory, found = directory_of_traces(above), {}
    if not is_private(directory):
        return {}
    for file in directory.glob("*-*.json"):
        try:
            if not stat.S_ISREG(file.lstat().st_mode) or file.lstat().st_size > _MAX_BYTES:
                continue
            trace = json.loads(file.read_bytes())
            if (trace["boot"], trace["namespace"]) == (boot(), namespace()) and isinstance(trace["pid"], int):
                found[file] = trace
        except (OSError, ValueError, KeyError, TypeError):
            continue  # gone meanwhile, or cut off by a full disk
    return found


def lives(pid: int, began: int) -> bool:
    """Whether the process of this id that began then still runs."""
    found = state_and_start(pid)
    return found is not None and found[0] not in _DEAD and found[1] == began


def start(pid: int) -> int:
    """Clock ticks from the machine's boot to the start of the process; 0 if that is not known."""
    found = state_and_start(pid)
    return found[1] if found else 0


def state_and_start(pid: int) -> tuple[str, int] | None:
    """The third and the twenty-second field of /proc/<pid>/stat; None if there is no such process."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = content.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[19])


def boot() -> str:
    """The machine's boot, by the kernel's name for it; empty where there is no /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def namespace() -> str:
    """The namespace of process ids; empty where there is no /proc."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - Python 3.9 in a container without /proc
    except OSError:
        return ""


def _write(what: str, run: Path) -> Path | None:
    pid, parent, directory = os.getpid(), os.getppid(), directory_of_traces(ABOVE)
    file = directory / f"{pid}-{start(pid)}.json"
    is_torchrun = "TORCHELASTIC_RUN_ID" in os.environ  # it ends its ranks when it ends; one that is left was forgotten
    note = {
        "boot": boot(),
        "namespace": namespace(),
        "pid": pid,
        "began": start(pid),
        "what": what,
        "run": str(run.absolute()),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "launcher": {"pid": parent, "began": start(parent)} if is_torchrun else None,
    }
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        if is_private(directory):
            file.write_text(json.dumps(note), encoding="utf-8")
            return file
    except OSError:
        pass
    return None
