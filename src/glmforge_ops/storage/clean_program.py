"""Removes on a node what ended jobs of ours left there (`leftovers`), and ends their stale processes if asked to.

What is removed gets another name first, so that no half of it is found under the old one; what a clean that was killed
leaves under that name is found by the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any

from glmforge.runtime.traces import lives
from glmforge_ops.hosts.on_node.wire import begin, say
from glmforge_ops.storage.leftovers import Leftover, Search, lock_of_clean, opened_files, stale_processes

_GRACE_S = 10.0


def main(program: bytes) -> None:
    """Carry out one order."""
    order = begin()
    if order is None:
        return
    try:
        lock = lock_of_clean(Path(order["traces"]))
        try:
            say(clean(order))
        finally:
            os.close(lock)
    except OSError as error:
        say({"refused": f"{error.filename}: {error.strerror}"})


def clean(order: dict[str, Any]) -> dict[str, Any]:
    """What was (or would be) removed, what stays, and the stale processes."""
    stale = stale_processes(order)
    if order["processes"] and not order["dry_run"]:
        for process in stale:
            process["ended"] = _end(process["pid"], process["began"])
    search, removed = Search(order), []
    opened = opened_files()
    for kind, path, why in search.find():
        found = search.examine(kind, path, why, opened)
        if found is not None and (order["dry_run"] or _remove(found)):
            removed.append({"kind": kind, "path": str(path), "bytes": found.num_bytes, "why": why})
    kept = [{"path": str(doubt.path), "why": doubt.why} for doubt in search.doubts]
    return {"removed": removed, "kept": kept, "processes": stale}


def _remove(found: Leftover) -> bool:
    """Whether it was removed by us: not if it is gone, or is not any more what was looked at."""
    with contextlib.suppress(OSError):
        now = found.path.lstat()
        before = found.status
        # The time of the last change of the inode is the kernel's: nobody can set it, and numbers are used again.
        if (now.st_ino, now.st_dev, now.st_ctime_ns) != (before.st_ino, before.st_dev, before.st_ctime_ns):
            return False
        if not stat.S_ISDIR(now.st_mode):
            found.path.unlink()
            return True
        number = time.monotonic_ns()
        doomed = found.path.with_name(f".glmforge-deleted-{number}-{socket.gethostname()}-{os.getpid()}")
        found.path.rename(doomed)
        shutil.rmtree(doomed)
        return True
    return False


def _end(pid: int, began: int) -> bool:
    """End a process, which is looked at once more when no other can take its id; whether it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            if not lives(pid, began):
                return True
            signal.pidfd_send_signal(descriptor, number)
            until = time.monotonic() + patience
            while lives(pid, began) and time.monotonic() < until:
                time.sleep(0.05)
        return not lives(pid, began)
    except ProcessLookupError:
        return True
    finally:
        os.close(descriptor)
