"""Removes on a node what this user's jobs left there when they were killed. `clean` sends it to nodes.

A name alone is never enough: the process in it must not exist, or the lock that its writer holds must be free. What is
removed belongs to this user altogether, lies on one file system and is older than asked for. Links are never followed.
What is in doubt stays and is listed.

Standard library of Python 3.9 only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.runtime.traces import boot, directory_of_traces, lives, namespace, read_traces, state_and_start
from glmforge_ops.hosts.on_node.wire import begin, say

_DEPTH = 5
_GRACE_S = 10.0
_CHECKPOINT = re.compile(r"\.step-\d{8,}\.(?:partial|deleted)-(?P<host>.+)-(?P<pid>\d{1,9})")
_SHARED_MEMORY = re.compile(r"torch_(?P<pid>\d{1,9})_\d+_\d+")
_SCRATCH = re.compile(r"glmforge-[a-z]+-(?P<boot>[0-9a-f]{8})-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<began>\d+)-.*")
_PLACE = re.compile(r"[0-9a-f]{12}")
_STEP = re.compile(r"step-\d{8,}")


class Found(NamedTuple):
    """Something that looks like ours; `why` says why it is left behind, or why not."""

    kind: str
    path: Path
    is_left: bool
    why: str


def main(program: bytes) -> None:
    """Carry out one order; another clean of this user on this machine waits."""
    order = begin()
    if order is None:
        return
    directory = directory_of_traces(Path(order["traces"]))
    directory.mkdir(mode=0o700, exist_ok=True)
    fcntl.flock(os.open(directory, os.O_RDONLY | os.O_NOFOLLOW), fcntl.LOCK_EX)
    say(clean(order))


def clean(order: dict[str, Any]) -> dict[str, Any]:
    """What was (or would be) removed, what stays, and the stale processes."""
    traces = read_traces(Path(order["traces"]))
    stale = _stale_processes(order, traces)
    if order["processes"] and not order["dry_run"]:
        for process in stale:
            process["ended"] = _end(process["pid"], process["began"])
    removed: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    seen: set[Path] = set()
    newest = time.time() - order["older_than_s"]
    for kind, path, is_left, why in _candidates(order, traces, kept):
        if path in seen:
            continue
        seen.add(path)
        num_bytes, doubt = 0, "" if is_left else why
        try:
            if not doubt:
                num_bytes, changed, doubt = _measure(path)
                if not doubt and changed > newest:
                    doubt = "is younger than --older-than"
            if not doubt and not order["dry_run"]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except FileNotFoundError:
            continue  # gone meanwhile
        except OSError as error:
            doubt = f"cannot be removed ({error.strerror})"
        (kept if doubt else removed).append({"kind": kind, "path": str(path), "bytes": num_bytes, "why": doubt or why})
    return {"removed": removed, "kept": kept, "processes": stale}


def _candidates(order: dict[str, Any], traces: dict[Path, dict[str, Any]], kept: list[Any]) -> Iterator[Found]:
    """Everything that looks like ours; the caller removes or keeps each before it asks for the next."""
    ended = {trace["pid"]: file for file, trace in traces.items() if not lives(trace["pid"], trace["began"])}
    for place in order["paths"]:
        yield from _below(Path(place), _DEPTH)
    for path, found in _named(Path(order["shm"]), _SHARED_MEMORY):
        pid = int(found["pid"])
        if state_and_start(pid) is None:
            is_ours = pid in ended
            why = f"process {pid} has ended" if is_ours else f"no note says that process {pid} was ours"
            yield Found("shared memory", path, is_ours, why)
    for path, found in _named(Path(order["tmp"]), _SCRATCH):
        if (found["boot"], f"pid:[{found['namespace']}]") != (boot()[:8], namespace()):
            yield Found("scratch directory", path, False, "is of another boot or container")
        elif not lives(int(found["pid"]), int(found["began"])):
            yield Found("scratch directory", path, True, f"process {found['pid']} has ended")
    for pid, file in ended.items():
        needed = any(Path(each["path"]).name.startswith(f"torch_{pid}_") for each in kept)
        why = "its shared memory is kept" if needed else f"of process {pid}, which has ended"
        yield Found("note", file, not needed, why)


def _below(directory: Path, depth: int) -> Iterator[Found]:
    """Unfinished checkpoints by the process that wrote them, unfinished copies of files by the lock beside them."""
    entries = _entries(directory)
    if any(entry.name == ".lock" for entry in entries):
        caches = [Path(entry.path) for entry in entries if _PLACE.fullmatch(entry.name) and _is_directory(entry)]
        partial = [path for cache in caches for path in sorted(cache.rglob("*.partial"))]
        lock = _lock(directory / ".lock") if partial else None
        for path in partial:
            why = "nobody copies there" if lock is not None else "a copy may be under way"
            yield Found("partial copy", path, lock is not None, why)
        if lock is not None:
            os.close(lock)
    for entry in entries:
        path, found = Path(entry.path), _CHECKPOINT.fullmatch(entry.name)
        if found and found["host"] != socket.gethostname():
            yield Found("partial checkpoint", path, False, f"is of host {found['host']}; clean there")
        elif found:
            has_ended = state_and_start(int(found["pid"])) is None
            why = f"process {found['pid']} {'has ended' if has_ended else 'lives'}"
            yield Found("partial checkpoint", path, has_ended, why)
        elif depth and _is_directory(entry) and not _STEP.fullmatch(entry.name):
            yield from _below(path, depth - 1)


def _lock(file: Path) -> int | None:
    """A descriptor that holds the lock; None if another process holds it, or it cannot be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
    return None


def _measure(path: Path) -> tuple[int, float, str]:
    """Bytes on the disk, time of the last change, and why it must stay (empty: nothing is against removing it)."""
    top = path.lstat()
    if stat.S_ISLNK(top.st_mode):
        return 0, 0.0, "is a link"
    inside = [Path(above, name) for above, folders, files in os.walk(path) for name in folders + files]
    found = [top, *(each.lstat() for each in inside)]
    if any(each.st_dev != top.st_dev for each in found):
        return 0, 0.0, "another file system is mounted in it"
    if any(each.st_uid != os.geteuid() for each in found):
        return 0, 0.0, "has files of another user"
    return sum(each.st_blocks * 512 for each in found), max(each.st_mtime for each in found), ""


def _stale_processes(order: dict[str, Any], traces: dict[Path, dict[str, Any]]) -> list[dict[str, Any]]:
    """Ranks of ours that live though their job, or their torchrun, has ended."""
    found = []
    for trace in traces.values():
        pid, job, launcher, why = trace["pid"], trace.get("slurm_job"), trace.get("launcher"), ""
        if job is not None and order["jobs"] is not None and job not in order["jobs"]:
            why = f"Slurm job {job} has ended"
        elif launcher and not lives(launcher["pid"], launcher["began"]):
            why = f"its torchrun (process {launcher['pid']}) has ended"
        with contextlib.suppress(OSError):  # it may end meanwhile
            if why and lives(pid, trace["began"]) and Path(f"/proc/{pid}").stat().st_uid == os.geteuid():
                found.append({name: trace[name] for name in ("pid", "began", "what", "run")} | {"why": why})
    return found


def _end(pid: int, began: int) -> bool:
    """SIGTERM, then SIGKILL; whether it has ended. With a descriptor the id cannot come to mean another process."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _GRACE_S
        if lives(pid, began):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
        while lives(pid, began) and time.monotonic() < until:
            time.sleep(0.05)
    os.close(descriptor)
    return not lives(pid, began)


def _named(directory: Path, pattern: re.Pattern[str]) -> Iterator[tuple[Path, re.Match[str]]]:
    for entry in _entries(directory):
        if found := pattern.fullmatch(entry.name):
            yield Path(entry.path), found


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
