"""Ranks on machines that are reached through ssh: one connection per machine, which ends its ranks when it ends.

A machine that cannot be reached is named at once, and the others are ended: without it the ranks never meet. A
connection that breaks later counts as a failure of that machine's ranks, which end themselves within a minute.
"""

import contextlib
import json
import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from glmforge.files import open_regular
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import UNREACHABLE, Ssh, explain_unreachable, last_line
from glmforge_ops.jobs.starters.base import Ranks
from glmforge_ops.jobs.starters.controlled import ControlledNodes
from glmforge_ops.jobs.starters.running import ask, ranks_command, spawn, write_assignment

logger = logging.getLogger(__name__)

_MAX_SAID = 1 << 16


class SshStarter:
    """Starts the ranks of every node through one connection to it (`Starter`); those of this machine without."""

    name = "ssh"

    def __init__(self, ssh: Ssh | None = None) -> None:
        self.ssh = ssh or Ssh()

    def start(self, ranks: Ranks) -> "SshNodes":
        write_assignment(ranks)
        return self.start_nodes(ranks)

    def start_nodes(self, ranks: Ranks, *arguments: str) -> "SshNodes":
        """`glmforge_ops.jobs.ranks` on every node, with `arguments` besides those that say which node it is."""
        processes: dict[str, subprocess.Popen[bytes]] = {}
        nodes = SshNodes(ranks, processes)
        try:
            for index, node in enumerate(ranks.nodes):
                command = ranks_command(ranks.directory.root, "--node", str(index), "--control", *arguments)
                is_here = _is_here(node, ranks)
                secrets = {} if is_here else {name: os.environ[name] for name in ranks.secrets if name in os.environ}
                command += ["--secrets"] if secrets else []
                line = command if is_here else self.ssh.to(node, "exec", *command, "--beats")
                process = spawn(line, ranks, stdin=subprocess.PIPE, log=said_by(ranks, node))
                _never_block(process, json.dumps(secrets) if secrets else "")
                processes[node] = process
        except BaseException:
            nodes.kill()
            raise
        return nodes

    def ask(self, node: str, words: Sequence[str]) -> str:
        is_here = node in LOCAL or node == socket.gethostname()
        return ask(node, words) if is_here else ask(node, self.ssh.to(node, *words), by_ssh=True)


def said_by(ranks: Ranks, node: str) -> Path:
    """What ssh, and the node's own process, have said that is no rank's output."""
    return ranks.directory.root / f"starter-{node}.log"


class SshNodes(ControlledNodes):
    """Running ranks of nodes with a connection each (`Running`).

    Attributes:
        unreachable: why, by node, for those that could not be reached or whose connection broke.
    """

    def __init__(self, ranks: Ranks, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        super().__init__(ranks, processes)
        self._ranks = ranks
        self.unreachable: dict[str, str] = {}

    def on_end(self, node: str, status: int) -> None:
        if status != UNREACHABLE or _is_here(node, self._ranks):
            return
        first = self._ranks.nodes.index(node) * self._ranks.ranks_per_node
        began = self._ranks.directory.rank(first).exists()
        said = _read(said_by(self._ranks, node))
        if began and not said.strip():
            return  # a program of the user's ended with this status
        meaning, mend = explain_unreachable(said)
        self.unreachable[node] = f"the connection broke: {last_line(said)}" if began else f"{meaning}; {mend}"
        logger.error("%s: %s", node, self.unreachable[node])
        if began:
            self.grace.begin()
        else:
            self.end_others()


def _is_here(node: str, ranks: Ranks) -> bool:
    """By a name that means this machine everywhere; by its own name if there is no other node to be reached."""
    return node in LOCAL or ranks.nodes == (socket.gethostname(),)


def _never_block(process: subprocess.Popen[bytes], first_line: str = "") -> None:
    """Whoever writes to it, but for a first line, which a new pipe has room for or ssh reads."""
    assert process.stdin is not None
    if first_line:
        with contextlib.suppress(BrokenPipeError):  # ssh has ended already, and says why
            process.stdin.write(f"{first_line}\n".encode())
            process.stdin.flush()
    os.set_blocking(process.stdin.fileno(), False)


def _read(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(_MAX_SAID).decode(errors="replace")
    except OSError:
        return ""
