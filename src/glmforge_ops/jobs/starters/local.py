"""Ranks on this machine; and what holds the program of each node by a pipe, here or through ssh.

What is asked of a node goes through the pipe, a line each. Its end is the end of whoever holds it, and ends the ranks.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from glmforge.errors import LaunchError
from glmforge.observe.job_records import AttemptDirectory
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.starters.base import (
    KILL_LIMIT_S,
    STARTER_LOG,
    ranks_command,
    spawn,
    wait_all,
    write_assignment,
)


class LocalStarter:
    """Starts all ranks here, whatever the one node is called (`Starter`)."""

    name = "local"

    def start(self, attempt: AttemptDirectory, ranks: Assignment) -> "Nodes":
        if len(ranks.nodes) != 1:
            raise LaunchError(f"the starter local has this node alone, not {len(ranks.nodes)}; choose ssh or srun")
        write_assignment(attempt, ranks)
        command = ranks_command(attempt, "--node", "0", "--control")
        process = spawn(command, attempt.root / STARTER_LOG, stdin=subprocess.PIPE)
        return Nodes({ranks.nodes[0]: process})


class Nodes:
    """Ranks of one program per node (`Running`).

    Args:
        processes: by node; may still grow until `poll` is called.
    """

    def __init__(self, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._ended: dict[str, int] = {}
        """Statuses, in the order in which they were seen."""

    def poll(self) -> int | None:
        """The status of the node that ended first with a failure."""
        for node, process in self._processes.items():
            if node not in self._ended and (status := process.poll()) is not None:
                self._ended[node] = status
                self.on_end(node, status)
        if len(self._ended) < len(self._processes):
            return None
        return next(filter(None, self._ended.values()), 0)

    def on_end(self, node: str, status: int) -> None:
        """Called with each node whose program has ended."""

    def signal(self, number: signal.Signals) -> None:
        self.tell(f"signal {int(number)}\n")

    def kill(self) -> None:
        self.tell("kill\n")
        wait_all(list(self._processes.values()), KILL_LIMIT_S)

    def tell(self, line: str) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            # One that has ended hears nothing more; one whose pipe is full does not read, and hears its end.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.set_blocking(process.stdin.fileno(), False)
                process.stdin.write(line.encode())
                process.stdin.flush()
