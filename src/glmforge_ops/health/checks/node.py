"""Runs on a node: calls the gathering functions that it is sent, each in a process of its own with a time limit, and
holds what those functions share. One that hangs or dies does not affect the others.

`GLMFORGE_PROBE_ROOT` stands for `/` if it is set, so that a test can give a node any hardware.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from glmforge_ops.hosts.on_node.wire import begin, say

ROOT = "GLMFORGE_PROBE_ROOT"
_CHUNK = 1 << 16
_LAUNCHERS = ("torchrun", "torch.distributed.run", "glmforge", "slurmstepd", "mpirun")


def main(program: bytes) -> None:
    """Carry out one order: its calls, all at once, within `limit_s`."""
    started = time.time()
    order = begin()
    if order is None:
        return
    for name, source in order["modules"]:
        module = sys.modules[name] = type(sys)(name)
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
    answers = _gather(order)
    say({"answers": answers, "times": [started, time.time()]})
    os._exit(0)  # without waiting for what hangs


def _gather(order: dict[str, Any]) -> list[dict[str, Any]]:
    """The facts of each call, in order, or why there are none."""
    deadline = time.monotonic() + order["limit_s"]
    running = dict(_start(order, index) for index in range(len(order["calls"])))
    found: dict[int, dict[str, Any]] = {}
    while running and time.monotonic() < deadline:
        for end in select.select([*running, 0], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if end == 0:  # the asker is gone: standard input stays open as long as it waits
                _kill(pid for _, pid, _ in running.values())
                os._exit(1)
            index, _, said = running[end]
            chunk = os.read(end, _CHUNK)
            said += chunk
            if not chunk or said.endswith(b"\n"):
                found[index] = json.loads(said) if chunk else {"error": "ended without an answer"}
                os.close(end)
                del running[end]
    _kill(pid for _, pid, _ in running.values())
    late = {"error": f"no answer within {order['limit_s']:g} s"}
    return [found.get(index, late) for index in range(len(order["calls"]))]


def _start(order: dict[str, Any], index: int) -> tuple[int, tuple[int, int, bytearray]]:
    """A process for one call: the pipe to read, and its index, process id and output."""
    hearing, speaking = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(null, standard)
            with os.fdopen(speaking, "wb") as stream:
                stream.write(_call(order, *order["calls"][index]) + b"\n")
        finally:
            os._exit(0)
    os.close(speaking)
    return hearing, (index, pid, bytearray())


def _call(order: dict[str, Any], module: str, function: str) -> bytes:
    arguments = [order["arguments"]] if order.get("arguments") else []
    try:
        return json.dumps({"facts": getattr(sys.modules[module], function)(order["cluster"], *arguments)}).encode()
    except Exception as error:  # noqa: BLE001  # any error is this call's answer
        return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()


def _kill(pids: Any) -> None:
    for pid in pids:
        try:
            os.killpg(pid, signal.SIGKILL)  # with all that it has started
        except OSError:
            os.kill(pid, signal.SIGKILL)


def at(path: str) -> str:
    """Where a file of the machine is."""
    return os.environ.get(ROOT, "") + path


def read_text(path: str) -> str | None:
    """A file's text without the space around it, at most 1 MiB; None if it cannot be read."""
    try:
        with open(at(path), "rb") as file:
            return file.read(1 << 20).decode(errors="replace").strip()
    except OSError:
        return None


def read_number(path: str) -> float | None:
    """The first number in a file: of "16.0 GT/s PCIe" 16."""
    found = re.search(r"-?\d+(?:\.\d+)?", read_text(path) or "")
    return float(found.group()) if found else None


def names_in(path: str) -> list[str]:
    """Entries of a directory, sorted; empty if there is no such directory."""
    try:
        return sorted(os.listdir(at(path)))
    except OSError:
        return []


def find_program(name: str) -> str | None:
    """Where a program is, by PATH and where administrators' are."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))


def run(*command: str, limit_s: float = 8.0) -> str | None:
    """A program's stdout; None if it is not installed, fails or takes longer."""
    status, printed, _ = call(*command, limit_s=limit_s)
    return printed if status == 0 else None


def call(*command: str, limit_s: float = 8.0, stdin: str = "") -> tuple[int | None, str, str]:
    """Exit status, stdout, and the last line of stderr (or else of stdout); status None: there is no such program."""
    program = find_program(command[0])
    if program is None:
        return None, "", f"{command[0]} is not installed"
    environment = dict(os.environ, LC_ALL="C")
    try:
        ended = subprocess.run([program, *command[1:]], input=stdin.encode(), capture_output=True, timeout=limit_s,
                               check=False, env=environment)  # fmt: skip
    except subprocess.TimeoutExpired:
        return 255, "", f"Connection timed out: no answer within {limit_s:g} s"
    except OSError as error:
        return None, "", f"{command[0]}: {error.strerror}"
    printed = ended.stdout.decode(errors="replace")
    return ended.returncode, printed, last_line(ended.stderr.decode(errors="replace")) or last_line(printed)


def last_line(text: str) -> str:
    """The last line that is not empty, short."""
    return next((line.strip()[:500] for line in reversed(text.splitlines()) if line.strip()), "")


def command_of(pid: int) -> str:
    """A process's command line, short."""
    line = (read_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    return (line or read_text(f"/proc/{pid}/comm") or "?")[:120]


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, ...; empty if there is no such process."""
    return (read_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()


def is_rank(pid: int) -> bool:
    """Whether it was started as a rank of a job. False if it is another user's."""
    names = {entry.partition("=")[0] for entry in (read_text(f"/proc/{pid}/environ") or "").split("\0")}
    return {"RANK", "WORLD_SIZE"} <= names


def is_orphan(pid: int) -> bool:
    """Whether it outlived its parent: a rank, or a rank's child, whose launcher is gone."""
    while True:
        stat = stat_of(pid)
        if not stat:
            return False
        parent = int(stat[1])
        if parent <= 1:
            first = read_text("/proc/1/cmdline") or ""  # a container's first process may be a launcher
            return not any(word in first for word in _LAUNCHERS)
        if not is_rank(parent):
            return False
        pid = parent


def is_service(pid: int) -> bool:
    """Whether systemd runs it as a service; what sshd or slurmd started does not count as one."""
    return bool(re.search(r"system\.slice/(?!ssh|slurm)[^/\n]*\.service", read_text(f"/proc/{pid}/cgroup") or ""))
