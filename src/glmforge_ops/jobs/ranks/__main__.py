"""`python -P -m glmforge_ops.jobs.ranks DIRECTORY ...`: run by starters, see `USAGE`."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from glmforge.errors import LaunchError
from glmforge_ops.jobs.ranks.assignment import Assignment, interface_to, rank_variables, slurm_job
from glmforge_ops.jobs.ranks.rank import Rank

USAGE = "usage: python -P -m glmforge_ops.jobs.ranks DIRECTORY (--node N | --slurm-node) [--control] [--secrets]"

ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Passed on to every rank, as SIGUSR1 and SIGUSR2 are; then the ranks have their grace, and are killed."""

ORPHAN_GRACE_S = 5.0
"""That ranks have between SIGTERM and SIGKILL when the supervisor is gone: others may soon take their place."""

LOOK_EVERY_S, SILENT_LOOKS = 10.0, 7
"""How often the supervisor's heartbeat is looked at, and after how many looks in a row without a change it is gone."""

_KILL, _ORPHANED = -1, -2
_POLL_S = 0.2
_REQUEUE_LIMIT_S = 60


def main(arguments: list[str]) -> int:
    """The status of the rank that failed first, 128 and the signal if one ended it; 0 if none did."""
    try:
        match arguments:
            case [directory, "--node", number, *flags] if number.isdecimal() and {*flags} <= {"--control", "--secrets"}:
                ranks, node = Assignment.read(Path(directory)), int(number)
            case [directory, "--slurm-node"]:
                flags, ranks = [], Assignment.read(Path(directory))
                node = _node_of_slurm(ranks)
            case _:
                raise LaunchError(USAGE)
        if node >= len(ranks.nodes):
            raise LaunchError(f"--node {node}: the attempt has nodes 0 to {len(ranks.nodes) - 1}")
        if "--secrets" in flags:
            os.environ.update(_read_secrets(sys.stdin.fileno()))
        return Node(Path(directory).absolute(), ranks, node).run(control="--control" in flags)
    except LaunchError as error:
        print(f"glmforge_ops.jobs.ranks: {error}", file=sys.stderr, flush=True)
        return 1


class Node:
    """The ranks of one node. Orders arrive in one queue: numbers of signals, `_KILL`, `_ORPHANED`."""

    def __init__(self, directory: Path, ranks: Assignment, node: int) -> None:
        self._directory, self._assignment, self._node = directory, ranks, node
        self._ranks = [Rank(directory, ranks, node, local) for local in range(ranks.ranks_per_node)]
        self._orders: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._kill_at = float("inf")
        self._parent = os.getppid()
        self._heartbeat = Heartbeat(directory)
        self._leaves = False

    def run(self, *, control: bool) -> int:
        for number in (signal.SIGUSR1, signal.SIGUSR2, *ENDS):
            signal.signal(number, self._on_signal)
        self._start_ranks()
        for target in (self._watch_supervisor, *([self._read_control] if control else [])):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()
        while any(rank.is_running for rank in self._ranks):
            with contextlib.suppress(queue.Empty):
                self._obey(self._orders.get(timeout=_POLL_S))
            if os.getppid() != self._parent:
                self._parent = os.getppid()
                self._obey(_ORPHANED)
            if time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
            for rank in self._ranks:
                rank.look()
        self._leave_to_supervisor()
        first = min((rank for rank in self._ranks if rank.status), key=lambda rank: rank.ended, default=None)
        status = first.status or 0 if first is not None else 0
        return status if status >= 0 else 128 - status

    def _start_ranks(self) -> None:
        given, name = self._assignment, self._directory.name
        attempt, interface = str(int(name)) if name.isdecimal() else "0", given.interface or interface_to(given.address)
        for rank in self._ranks:
            variables = rank_variables(given, self._node, rank.local, os.environ, attempt=attempt, interface=interface)
            rank.start(variables)
        for rank in self._ranks:
            rank.follow()

    def _obey(self, order: int) -> None:
        grace_s = {_KILL: 0.0, _ORPHANED: min(ORPHAN_GRACE_S, self._assignment.grace_s)}
        if order != _KILL:
            self._signal(signal.SIGTERM if order == _ORPHANED else order)
        if order in (_KILL, _ORPHANED, *ENDS):  # an earlier time stands
            self._kill_at = min(self._kill_at, time.monotonic() + grace_s.get(order, self._assignment.grace_s))

    def _signal(self, number: int) -> None:
        for rank in self._ranks:
            rank.signal(number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._orders.put(number)

    def _read_control(self) -> None:
        """Lines of standard input: "signal NUMBER" and "kill". It ends when the program that holds it does."""
        for line in os.fdopen(os.dup(0)):
            word, _, number = line.strip().partition(" ")
            if word == "signal" and number.isdecimal():
                self._orders.put(int(number))
            elif word == "kill":
                self._orders.put(_KILL)
        self._orders.put(_ORPHANED)

    def _watch_supervisor(self) -> None:
        """A link that is cut, or a node that is lost, ends no pipe: the job's files show it."""
        while not self._leaves:
            self._heartbeat.look()
            time.sleep(LOOK_EVERY_S)
            if self._heartbeat.unchanged >= SILENT_LOOKS or _is_over(self._directory / "attempt.json"):
                self._orders.put(_ORPHANED)
                return

    def _leave_to_supervisor(self) -> None:
        """Under Slurm, see that there is one: if its node was lost, Slurm keeps the job on the others for nothing."""
        self._leaves = True
        job, heartbeat = slurm_job(), self._heartbeat
        missing = heartbeat.unchanged
        heartbeat.look()
        if not job or not self._assignment.requeue or not heartbeat.seen:
            return
        deadline = time.monotonic() + LOOK_EVERY_S * (SILENT_LOOKS - missing)
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            heartbeat.look()
            if not heartbeat.unchanged:
                return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["scontrol", "requeue", job], timeout=_REQUEUE_LIMIT_S, check=False)


class Heartbeat:
    """The supervisor's claim on the job's directory, of which it overwrites the contents every two seconds.

    Attributes:
        unchanged: looks in a row that have found the same. Storage that hangs or fails gives no look.
    """

    def __init__(self, attempt: Path) -> None:
        self._claims, self.seen, self.unchanged = attempt.parent.parent / ".supervisor", b"", 0

    def look(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            content = max(path for path in self._claims.iterdir() if path.name.isdecimal()).read_bytes()
            self.seen, self.unchanged = content, self.unchanged + 1 if content == self.seen else 0


def _is_over(record: Path) -> bool:
    """Whether the supervisor has ended this attempt without getting through to this node."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(record.read_text()).get("ended") is not None
    return False


def _node_of_slurm(ranks: Assignment) -> int:
    """By its name: Slurm sorts the nodes of a step by its own order."""
    name = os.environ.get("SLURMD_NODENAME", "")
    if name not in ranks.nodes:
        raise LaunchError(f"SLURMD_NODENAME = {name!r} is not one of the attempt's nodes ({', '.join(ranks.nodes)})")
    return ranks.nodes.index(name)


def _read_secrets(control: int) -> dict[str, str]:
    """One line, and nothing of what follows it."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(control, 1)):
            raise LaunchError("the connection ended before it had handed over the job's variables")
        line += byte
    found: dict[str, str] = json.loads(line)
    return found


def _leave(status: int) -> NoReturn:
    """At once: a thread that waits for storage is not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
