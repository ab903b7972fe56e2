"""Ranks on machines that are reached through ssh: one connection per machine, which ends its ranks when it ends.

A machine that cannot be reached is named at once, and the others are ended: without it the ranks never meet.
"""

import contextlib
import json
import logging
import os
import socket
import subprocess

from glmforge.files import open_regular
from glmforge.observe.job_records import AttemptDirectory
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import UNREACHABLE, Ssh, explain_unreachable, last_line
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.starters.base import ranks_command, spawn, write_assignment
from glmforge_ops.jobs.starters.local import Nodes

logger = logging.getLogger(__name__)

_MAX_SAID = 1 << 16


class SshStarter:
    """Starts the ranks of every node through one connection to it (`Starter`); those of this machine without."""

    name = "ssh"

    def __init__(self, ssh: Ssh | None = None) -> None:
        self.ssh = ssh or Ssh()

    def start(self, attempt: AttemptDirectory, ranks: Assignment) -> "SshNodes":
        write_assignment(attempt, ranks)
        processes: dict[str, subprocess.Popen[bytes]] = {}
        nodes = SshNodes(attempt, ranks, processes)
        try:
            for index, node in enumerate(ranks.nodes):
                processes[node] = self._start(attempt, ranks, index)
        except BaseException:
            nodes.kill()
            raise
        return nodes

    def _start(self, attempt: AttemptDirectory, ranks: Assignment, index: int) -> subprocess.Popen[bytes]:
        node = ranks.nodes[index]
        command, secrets = ranks_command(attempt, "--node", str(index), "--control"), {}
        if not _is_here(node, ranks):
            secrets = {name: os.environ[name] for name in ranks.secrets if name in os.environ}
            command = self.ssh.to(node, "exec", *command, *(["--secrets"] if secrets else []))
        process = spawn(command, attempt.root / f"starter-{node}.log", stdin=subprocess.PIPE)
        if secrets and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # ssh has ended already, and says why
                process.stdin.write(f"{json.dumps(secrets)}\n".encode())
                process.stdin.flush()
        return process


class SshNodes(Nodes):
    """Ranks of nodes with a connection each (`Running`)."""

    def __init__(
        self, attempt: AttemptDirectory, ranks: Assignment, processes: dict[str, subprocess.Popen[bytes]]
    ) -> None:
        super().__init__(processes)
        self._attempt, self._ranks = attempt, ranks

    def on_end(self, node: str, status: int) -> None:
        if status != UNREACHABLE or _is_here(node, self._ranks):
            return
        said = self._said(node)
        first = self._ranks.nodes.index(node) * self._ranks.ranks_per_node
        if self._attempt.rank(first).exists():
            if said.strip():  # else a program of the user's ended with this status
                logger.error("%s: the connection broke: %s", node, last_line(said))
            return
        meaning, fix = explain_unreachable(said)
        logger.error("%s: %s; %s", node, meaning, fix)
        self.tell("kill\n")

    def _said(self, node: str) -> str:
        try:
            with open_regular(self._attempt.root / f"starter-{node}.log") as file:
                return file.read(_MAX_SAID).decode(errors="replace")
        except OSError:
            return ""


def _is_here(node: str, ranks: Assignment) -> bool:
    """By a name that means this machine everywhere; by its own name if there is no other node to be reached."""
    return node in LOCAL or ranks.nodes == [socket.gethostname()]
