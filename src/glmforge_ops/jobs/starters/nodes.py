"""Ranks by one program per node, which the starter holds by a pipe: on this machine, or through ssh.

Orders go through the pipe, a line each. When the starter's process ends, so does the pipe, and with it the ranks. A
machine that cannot be reached is named at once, and the others are ended: without it the ranks never meet.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess

from glmforge.errors import LaunchError
from glmforge.files import read_end
from glmforge.observe.job_records import AttemptDirectory
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import UNREACHABLE, Ssh, last_line, unreachable
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.starters.base import ranks_command, spawn, wait_all, write_assignment

logger = logging.getLogger(__name__)

_KILL_LIMIT_S = 10.0
"""That ending every process may take; a node that does not answer in it ends its ranks itself."""
_MAX_SAID = 1 << 16


class SshStarter:
    """Starts the ranks of every node through one connection to it (`Starter`); those of this machine without."""

    name = "ssh"

    def __init__(self, ssh: Ssh | None = None) -> None:
        self.ssh = ssh or Ssh()

    def start(self, attempt: AttemptDirectory, ranks: Assignment) -> "Nodes":
        write_assignment(attempt, ranks)
        nodes = Nodes(attempt, ranks)
        try:
            for index, node in enumerate(ranks.nodes):
                is_here = self._is_here(node, ranks)
                nodes.processes[node] = self._start(attempt, ranks, index, is_here=is_here)
                nodes.remote |= set() if is_here else {node}
        except BaseException:
            nodes.kill()
            raise
        return nodes

    def _start(
        self, attempt: AttemptDirectory, ranks: Assignment, index: int, *, is_here: bool
    ) -> subprocess.Popen[bytes]:
        node = ranks.nodes[index]
        command, secrets = ranks_command(attempt, "--node", str(index), "--control"), {}
        if not is_here:
            secrets = {name: os.environ[name] for name in ranks.secrets if name in os.environ}
            command = self.ssh.to(node, "exec", *command, *(["--secrets"] if secrets else []))
        process = spawn(command, attempt.root / _log_of(node), stdin=subprocess.PIPE)
        if secrets and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # ssh has ended already, and says why
                process.stdin.write(f"{json.dumps(secrets)}\n".encode())
                process.stdin.flush()
        return process

    def _is_here(self, node: str, ranks: Assignment) -> bool:
        """By a name that means this machine everywhere; by its own name if there is no other node to be reached."""
        return node in LOCAL or ranks.nodes == [socket.gethostname()]


class LocalStarter(SshStarter):
    """Starts all ranks here, under any name of the node (`Starter`)."""

    name = "local"

    def start(self, attempt: AttemptDirectory, ranks: Assignment) -> "Nodes":
        if len(ranks.nodes) != 1:
            raise LaunchError(f"the starter local has this node alone, not {len(ranks.nodes)}; choose ssh or srun")
        return super().start(attempt, ranks)

    def _is_here(self, node: str, ranks: Assignment) -> bool:
        return True


class Nodes:
    """Ranks of one program per node (`Running`). `processes`: by node; `remote`: nodes that are reached through ssh."""

    def __init__(self, attempt: AttemptDirectory, ranks: Assignment) -> None:
        self._attempt, self._ranks = attempt, ranks
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.remote: set[str] = set()
        self._ended: dict[str, int] = {}
        """Statuses, in the order in which they were seen."""

    def poll(self) -> int | None:
        """The status of the node that ended first with a failure."""
        for node, process in self.processes.items():
            if node not in self._ended and (status := process.poll()) is not None:
                self._ended[node] = status
                if status == UNREACHABLE and node in self.remote:
                    self._look_at_connection(node)
        if len(self._ended) < len(self.processes):
            return None
        return next(filter(None, self._ended.values()), 0)

    def signal(self, number: signal.Signals) -> None:
        self._tell(f"signal {int(number)}\n")

    def kill(self) -> None:
        self._tell("kill\n")
        wait_all(list(self.processes.values()), _KILL_LIMIT_S)

    def _tell(self, line: str) -> None:
        for process in self.processes.values():
            assert process.stdin is not None
            # One that has ended reads nothing more; one whose pipe is full does not read, and sees its end.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.set_blocking(process.stdin.fileno(), False)
                process.stdin.write(line.encode())
                process.stdin.flush()

    def _look_at_connection(self, node: str) -> None:
        """ssh has failed, or a program of the user's ended with its status."""
        printed = ""
        with contextlib.suppress(LaunchError):
            end = read_end(self._attempt.root / _log_of(node), error=LaunchError, max_bytes=_MAX_SAID)
            printed = end.decode(errors="replace")
        if not self._attempt.rank(self._ranks.nodes.index(node) * self._ranks.ranks_per_node).exists():
            logger.error("%s", unreachable(node, printed))
            self._tell("kill\n")
        elif printed.strip():
            logger.error("%s: the connection broke: %s", node, last_line(printed))


def _log_of(node: str) -> str:
    return f"starter-{node}.log"
