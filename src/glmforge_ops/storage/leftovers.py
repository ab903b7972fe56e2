"""What our jobs leave on a node when they are killed, and how each is known as ours and as left behind.

A name alone is never enough. Each kind below says by what its owner is known, and the owner must certainly be gone:
the process named in it does not exist, or the lock that its writer holds is free. Files and directories must belong to
this user altogether, lie on the one file system, not be open in any process, and be older than asked for. Links are
never followed. What is in doubt stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.runtime.traces import (
    boot,
    directory_of_traces,
    lives,
    namespace,
    read_traces,
    state_and_start,
)

_DEPTH = 5
_OF_PROCESS = re.compile(r"\.(?:step-\d{8,}\.(?:partial|deleted)|glmforge-deleted-\d+)-(?P<host>.+)-(?P<pid>\d{1,9})")
_SHARED_MEMORY = re.compile(r"torch_(?P<pid>\d{1,9})_\d+_\d+")
_SCRATCH = re.compile(r"glmforge-[a-z]+-(?P<boot>[0-9a-f]{8})-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<began>\d+)-.*")
_PLACE = re.compile(r"[0-9a-f]{12}")
_RECEIVING = re.compile(r"\.copying-step-\d{8,}")
_STEP = re.compile(r"step-(?P<step>\d{8,})")


class Leftover(NamedTuple):
    """Something to remove: `why` it is known to be left behind; `status` is what it was when that was found."""

    kind: str
    path: Path
    why: str
    status: os.stat_result
    num_bytes: int


class Doubt(NamedTuple):
    """Something that looks like ours and stays."""

    path: Path
    why: str


class Search:
    """Looks through an order's places. `doubts` tells what was passed over, and why."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._newest = time.time() - order["older_than_s"]
        self._traces = read_traces(Path(order["traces"]))
        self.doubts: list[Doubt] = []

    def find(self) -> Iterator[tuple[str, Path, str]]:
        """Kind, path and reason of everything whose owner is gone."""
        seen: set[Path] = set()
        for place in map(Path, self._order["paths"]):
            for kind, path, why in self._below(place, _DEPTH):
                if path not in seen:
                    seen.add(path)
                    yield kind, path, why
        yield from self._shared_memory(Path(self._order["shm"]))
        yield from self._scratch(Path(self._order["tmp"]))
        for root in self._order["runs"]:
            yield from self._local_checkpoints(Path(root["root"]), root["step"])
        for file, trace in self._traces.items():
            if not lives(trace["pid"], trace["began"]):
                yield "note", file, f"of process {trace['pid']}, which has ended"

    def examine(self, kind: str, path: Path, why: str, opened: set[str]) -> Leftover | None:
        """What would be removed, if nothing speaks against it; else a doubt is noted."""
        try:
            status = path.lstat()
            num_bytes, newest, foreign = _measure(path, status)
        except OSError:
            return None  # gone meanwhile
        here = str(path)
        if stat.S_ISLNK(status.st_mode):
            self.doubts.append(Doubt(path, "is a link"))
        elif foreign:
            self.doubts.append(Doubt(path, foreign))
        elif newest > self._newest and kind not in ("note", "checkpoint"):
            self.doubts.append(Doubt(path, "is younger than --older-than"))
        elif here in opened or any(name.startswith(here + "/") for name in opened):
            self.doubts.append(Doubt(path, "is open in a process"))
        else:
            return Leftover(kind, path, why, status, num_bytes)
        return None

    def _below(self, directory: Path, depth: int) -> Iterator[tuple[str, Path, str]]:
        entries = _entries(directory)
        names = {entry.name for entry in entries}
        if ".lock" in names or ".copy.lock" in names:
            yield from self._unfinished(directory, ".lock" if ".lock" in names else ".copy.lock", entries)
        for entry in entries:
            path = Path(entry.path)
            if found := _OF_PROCESS.fullmatch(entry.name):
                if found["host"] != socket.gethostname():
                    self.doubts.append(Doubt(path, f"is of host {found['host']}, which cannot be asked here"))
                elif state_and_start(int(found["pid"])) is not None:
                    self.doubts.append(Doubt(path, f"process {found['pid']} lives"))
                else:
                    yield "partial checkpoint", path, f"process {found['pid']} has ended"
            elif depth and entry.is_dir(follow_symlinks=False) and not _STEP.fullmatch(entry.name):
                yield from self._below(path, depth - 1)

    def _unfinished(
        self, directory: Path, lock: str, entries: list[os.DirEntry[str]]
    ) -> Iterator[tuple[str, Path, str]]:
        """Files and checkpoints being copied, whose lock nobody holds."""
        found: list[Path] = []
        if lock == ".lock":
            for entry in entries:
                if _PLACE.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    found += sorted(Path(entry.path).rglob("*.partial"))
        else:
            found = [
                Path(entry.path) for entry in _entries(directory / "checkpoints") if _RECEIVING.fullmatch(entry.name)
            ]
        if found:
            with held(directory / lock) as free:
                for path in found:
                    if free:
                        yield "partial copy", path, "nobody copies there"
                    else:
                        self.doubts.append(Doubt(path, "somebody copies there"))

    def _shared_memory(self, directory: Path) -> Iterator[tuple[str, Path, str]]:
        """torch names its segments after the process that makes them; whether that was ours, its note tells."""
        ended = {trace["pid"] for trace in self._traces.values() if not lives(trace["pid"], trace["began"])}
        for entry in _entries(directory):
            found = _SHARED_MEMORY.fullmatch(entry.name)
            if found is None:
                continue
            pid = int(found["pid"])
            if state_and_start(pid) is not None:
                continue
            if pid in ended:
                yield "shared memory", Path(entry.path), f"process {pid} has ended"
            else:
                self.doubts.append(Doubt(Path(entry.path), f"no note says that process {pid} was ours"))

    def _scratch(self, directory: Path) -> Iterator[tuple[str, Path, str]]:
        for entry in _entries(directory):
            found = _SCRATCH.fullmatch(entry.name)
            if found is None:
                continue
            if (found["boot"], f"pid:[{found['namespace']}]") != (boot()[:8], namespace()):
                self.doubts.append(Doubt(Path(entry.path), "is of another boot or container"))
            elif not lives(int(found["pid"]), int(found["began"])):
                yield "scratch directory", Path(entry.path), f"process {found['pid']} has ended"

    def _local_checkpoints(self, root: Path, newest: int) -> Iterator[tuple[str, Path, str]]:
        for entry in _entries(root):
            found = _STEP.fullmatch(entry.name)
            if found is not None and entry.is_dir(follow_symlinks=False):
                if int(found["step"]) <= newest:
                    yield "checkpoint", Path(entry.path), f"shared storage has step {newest}, whole"
                else:
                    self.doubts.append(Doubt(Path(entry.path), "is newer than what is whole on shared storage"))


def stale_processes(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Processes of ours that live though their job has ended."""
    found = []
    for trace in read_traces(Path(order["traces"])).values():
        pid, began, launcher = trace["pid"], trace["began"], trace.get("launcher")
        if not lives(pid, began):
            continue
        why = ""
        job = trace.get("slurm_job")
        if job is not None and order["jobs"] is not None and job not in order["jobs"]:
            why = f"Slurm job {job} has ended"
        elif launcher and not lives(launcher["pid"], launcher["began"]):
            why = f"its torchrun (process {launcher['pid']}) has ended"
        if why and _owner(pid) == os.geteuid():
            found.append({"pid": pid, "began": began, "what": trace["what"], "run": trace["run"], "why": why})
    return found


def opened_files() -> set[str]:
    """What processes have open, mapped or as their directory, as far as this user may see that."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for link in [process / "cwd", process / "root", *(process / "fd").iterdir()]:
                with contextlib.suppress(OSError):
                    found.add(os.readlink(link))  # noqa: PTH115 - a string, as it stands there
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                fields = line.split(None, 5)
                if len(fields) == 6:
                    found.add(fields[5])
    return found


@contextlib.contextmanager
def held(lock: Path) -> Iterator[bool]:
    """Hold a lock within the block, if nobody else does."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def lock_of_clean(above: Path) -> int:
    """Waits for another clean of this user on this machine; a descriptor that holds the lock."""
    directory = directory_of_traces(above)
    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory / ".clean.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _measure(path: Path, status: os.stat_result) -> tuple[int, float, str]:
    """Bytes on the disk, time of the last change, and what in it is not ours (empty: nothing)."""
    me = os.geteuid()
    num_bytes, newest = status.st_blocks * 512, status.st_mtime
    foreign = "" if status.st_uid == me else "belongs to another user"
    if stat.S_ISDIR(status.st_mode) and not foreign:
        for entry in os.scandir(path):
            inner = entry.stat(follow_symlinks=False)
            if inner.st_dev != status.st_dev:
                return num_bytes, newest, f"another file system is mounted in it ({entry.name})"
            more, last, foreign = _measure(Path(entry.path), inner)
            num_bytes, newest = num_bytes + more, max(newest, last)
            if foreign:
                return num_bytes, newest, foreign if "another user" not in foreign else "holds files of another user"
    return num_bytes, newest, foreign


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return []


def _owner(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return -1
