"""One process per node that starts all of its ranks, held by a pipe to its standard input: here, or through ssh.

What is asked of a node goes through the pipe, a line each. Its end is the end of the one who holds it, and ends the
ranks; so does a minute without a sign of life, which is all that a cut link shows.
"""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Mapping

from glmforge_ops.jobs.starters.base import Ranks
from glmforge_ops.jobs.starters.running import KILL_LIMIT_S, Grace, kill_session, wait_all

BEAT_EVERY_S = 5.0


class ControlledNodes:
    """Running ranks of one controlled process per node (`Running`).

    Args:
        processes: by node, in the order of the nodes; may still grow until `poll` is called.
    """

    def __init__(self, ranks: Ranks, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self.grace = Grace(ranks)
        self._failed: list[int] = []
        self._ended: set[str] = set()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, name="beats", daemon=True).start()

    def on_end(self, node: str, status: int) -> None:
        """Told of each node's process that ends."""

    def poll(self) -> int | None:
        """The status of the node that ended first with a failure."""
        for node, process in self._processes.items():
            status = process.poll()
            if status is not None and node not in self._ended:
                self._ended.add(node)
                self._failed += [status] if status else []
                self.on_end(node, status)
        if len(self._ended) < len(self._processes):
            if self.grace.is_over():
                self.kill()
            return None
        self._close()
        return self._failed[0] if self._failed else 0

    def signal(self, number: signal.Signals) -> None:
        self._tell(f"signal {int(number)}\n")

    def kill(self) -> None:
        self.end_others()
        wait_all(list(self._processes.values()), KILL_LIMIT_S)
        for process in self._processes.values():  # the end of the pipe is what a node still hears of
            kill_session(process)
        self._close()

    def end_others(self) -> None:
        """Have every node that can be reached kill its ranks; without waiting for it."""
        self._tell("kill\n")

    def _tell(self, line: str) -> None:
        with self._lock:
            for process in list(self._processes.values()):
                assert process.stdin is not None
                # One that has ended hears nothing more; one whose pipe is full does not read, and hears its end.
                with contextlib.suppress(BrokenPipeError, BlockingIOError, ValueError):
                    process.stdin.write(line.encode())
                    process.stdin.flush()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_EVERY_S):
            self._tell("beat\n")

    def _close(self) -> None:
        self._stop.set()
        with self._lock:
            for process in self._processes.values():
                if process.stdin is not None:
                    with contextlib.suppress(BrokenPipeError, BlockingIOError):
                        process.stdin.close()
