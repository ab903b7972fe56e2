"""What probes share: reading the kernel's files, asking programs. It goes to a node together with them.

Everything answers None for what is not there. The directory in `GLMFORGE_PROBE_ROOT` stands for `/` if it is set, so
that a test can give a node any hardware.
"""

from __future__ import annotations

import os
import re
import subprocess

ROOT = "GLMFORGE_PROBE_ROOT"

_MAX_FILE = 1 << 20
_CHUNK = 1 << 16
_LAUNCHERS = ("torchrun", "torch.distributed.run", "glmforge", "slurmstepd", "mpirun")
_KEEPER = "cluster/dev/keeper.py"
"""The first process of a development cluster's host, which starts no ranks."""


def at(path: str) -> str:
    """Where a file of the machine is."""
    return os.environ.get(ROOT, "") + path


def read_text(path: str) -> str | None:
    """A file's text without the space around it; at most 1 MiB of it."""
    try:
        descriptor = os.open(at(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = chunk = os.read(descriptor, _CHUNK)
        while chunk and len(text) < _MAX_FILE:
            chunk = os.read(descriptor, _CHUNK)
            text += chunk
        return text[:_MAX_FILE].decode(errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_number(path: str) -> float | None:
    """The first number in a file."""
    return first_number(read_text(path))


def first_number(text: str | None) -> float | None:
    """The first number in a text, whatever its unit: "16.0 GT/s PCIe" is 16."""
    found = re.search(r"-?\d+(?:\.\d+)?", text or "")
    return float(found.group()) if found else None


def names_in(path: str) -> list[str]:
    """Entries of a directory, sorted; none if it is not there."""
    try:
        return sorted(os.listdir(at(path)))
    except OSError:
        return []


def run(*command: str, limit_s: float = 8.0) -> str | None:
    """What a program prints; None if it is not installed, fails or takes longer."""
    program = find_program(command[0])
    if program is None:  # most are not there on most nodes: no process is made to find that out
        return None
    try:
        ended = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=True,
            env=dict(os.environ, LC_ALL="C"),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.decode(errors="replace")


def find_program(name: str, more: tuple = ()) -> str | None:
    """Where a program is, by PATH and the directories `more`."""
    for folder in [*os.environ.get("PATH", os.defpath).split(os.pathsep), *more]:
        file = os.path.join(folder, name)
        if os.access(file, os.X_OK) and os.path.isfile(file):
            return file
    return None


def cpus_of(text: str | None) -> set[int]:
    """CPUs in the kernel's notation: "0-3,8"."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last or first).isdigit():
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def parent_of(pid: int) -> int | None:
    """The parent's process id."""
    stat = read_text(f"/proc/{pid}/stat")
    # The name in brackets may hold spaces and brackets itself.
    fields = stat.rpartition(")")[2].split() if stat else []
    return int(fields[1]) if len(fields) > 1 else None


def command_of(pid: int) -> str:
    """The command line, short."""
    line = (read_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    return (line or read_text(f"/proc/{pid}/comm") or "?")[:120]


def is_rank(pid: int) -> bool:
    """Whether it was started as a rank of a job. False if it is another user's and cannot be read."""
    environment = (read_text(f"/proc/{pid}/environ") or "").split("\0")
    return any(entry.startswith("RANK=") for entry in environment) and any(
        entry.startswith("WORLD_SIZE=") for entry in environment
    )


def is_orphan(pid: int) -> bool:
    """Whether a process outlived what started it: a rank, or a rank's child, whose launcher is gone."""
    while True:
        parent = parent_of(pid)
        if parent is None:
            return False
        if parent <= 1:
            first = read_text("/proc/1/cmdline") or ""  # a container's first process may be a launcher
            return _KEEPER in first or not any(word in first for word in _LAUNCHERS)
        if not is_rank(parent):
            return False
        pid = parent


def is_service(pid: int) -> bool:
    """Whether systemd runs it as a service of its own; its parent is the first process by right.

    What came in through sshd or slurmd is no service of its own, even where it stands in theirs.
    """
    return bool(re.search(r"system\.slice/(?!ssh|slurm)[^/\n]*\.service", read_text(f"/proc/{pid}/cgroup") or ""))
