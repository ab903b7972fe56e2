"""Processes of ours on this machine: what each of them notes of itself, and whether it still lives.

    /tmp/glmforge-<uid>/<pid>-<began>.json

A process that works on a node (a rank of a training run) leaves such a note while it lives. It names the process as the
kernel knows it: boot, namespace of process ids, id and start. One that was killed leaves its note behind, and then it
is certain whose files with its id in their names were. The directory is its user's alone; another's is not believed.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

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


def state_and_start(pid: int) -> tuple[str, int] | None:
    """The third and the twenty-second field of /proc/<pid>/stat; None if there is no such process."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = content.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def boot() -> str:
    """The machine's boot, by the kernel's name for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def namespace() -> str:
    """The namespace of process ids."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - Python 3.9 in a container without /proc
    except OSError:
        return ""
