"""Processes that should not be there any more, or that are stuck."""

from __future__ import annotations

import os
import time

from glmforge_ops.health.checks.probes.reading import (
    at,
    command_of,
    is_orphan,
    is_rank,
    names_in,
    read_number,
    read_text,
)

_AGAIN_S = 0.5
_MAX_NAMED = 50


def gather(cluster: dict) -> dict:
    pids = [int(name) for name in names_in("/proc") if name.isdigit()]
    host = _namespace("self")
    ours = [pid for pid in pids if _namespace(str(pid)) in (None, host)]
    states = {pid: _state(pid) for pid in ours}
    waiting = [pid for pid in ours if states[pid] == "D"]
    if waiting:  # for a moment is nothing: a process that reads from a disk is
        time.sleep(_AGAIN_S)
    stale = [pid for pid in ours if states[pid] != "Z" and is_rank(pid) and is_orphan(pid)]
    return {
        "stale": [_named(pid) for pid in stale[:_MAX_NAMED]],
        "zombies": sum(state == "Z" for state in states.values()),
        "stuck": [_named(pid) for pid in waiting if _state(pid) == "D"][:_MAX_NAMED],
        "load": read_number("/proc/loadavg"),
        "cpus": len(os.sched_getaffinity(0)),
    }


def _state(pid: int) -> str | None:
    stat = read_text(f"/proc/{pid}/stat")
    fields = stat.rpartition(")")[2].split() if stat else []
    return fields[0] if fields else None


def _namespace(pid: str) -> str | None:
    """Which host name it sees: a container with one of its own is another's business."""
    try:
        return os.readlink(at(f"/proc/{pid}/ns/uts"))  # Path.readlink is of Python 3.9
    except OSError:
        return None


def _named(pid: int) -> dict:
    return {"pid": pid, "command": command_of(pid)}
