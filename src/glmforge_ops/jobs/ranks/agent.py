"""torchrun on one node, which starts the node's ranks: the arguments that it needs, and the signals that it would eat.

Nodes are numbered by the attempt and meet at a fixed place (`static`), once (`--max-restarts 0`). torchrun's elastic
rendezvous is left alone on purpose: there a node that comes back joins in at its own time, every failed round of that
counts as a restart on all nodes, and so one bad link can use up the restarts of a whole job. The supervisor starts a
new attempt instead, with a list of nodes that it has looked at.

torchrun passes on no SIGUSR1, and would be ended by it; signals are given to its ranks, each a process of
`glmforge_ops.jobs.ranks` again, which keeps the log and the record.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.ranks.guard import Guard, signal_groups
from glmforge_ops.jobs.ranks.lines import LineReader, timestamp
from glmforge_ops.jobs.ranks.network import own_address_towards
from glmforge_ops.jobs.ranks.writer import RankLog, Writer


class Agent:
    """The torchrun of a node, watched like a rank. Its own output goes into `agent-NNNNN.log`."""

    def __init__(self, directory: Path, assignment: Assignment, node: int, writer: Writer) -> None:
        self._directory, self._assignment, self._node = directory, assignment, node
        self._log = RankLog(directory / f"agent-{node:05d}.log", node, assignment.log_bytes, writer)
        self._process: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self.streams: dict[IO[bytes], LineReader] = {}

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._status is None

    @property
    def status(self) -> int:
        return 1 if self._status is None else self._status

    def start(self, environment: Mapping[str, str], guard: Guard) -> None:
        process = self._process = subprocess.Popen(
            torchrun_command(self._directory, self._assignment, self._node),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _before(guard),
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self.streams[process.stdout] = LineReader()

    def read(self, stream: IO[bytes]) -> bool:
        try:
            data = os.read(stream.fileno(), 1 << 18)
        except BlockingIOError:
            return True
        lines = self.streams[stream].feed(data, time.monotonic()) if data else self.streams.pop(stream).end()
        if lines:
            self._log.add(timestamp(time.time()), None, lines)
        if not data:
            stream.close()
        return bool(data)

    def signal(self, number: int) -> None:
        """To the ranks; SIGKILL to torchrun as well, once it has none."""
        if not self.is_running or self._process is None:
            return
        ranks = _children(self._process.pid)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT if number == signal.SIGKILL else number)  # which each knows to mean it
        if number == signal.SIGKILL and not ranks:
            signal_groups({self._process.pid}, number)

    def look(self, guard: Guard) -> bool:
        if not self.is_running or self._process is None or self._process.poll() is None:
            return False
        self._status = self._process.returncode
        guard.remove(self._process.pid)
        return True

    def finish(self) -> None:
        self._log.close(timestamp(time.time()))


def torchrun_command(directory: Path, assignment: Assignment, node: int) -> list[str]:
    """`--local-addr`: otherwise torchrun looks its own host up by name, which may take long or find the loopback."""
    own = own_address_towards(assignment.address)
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(assignment.nodes))),
        *("--node-rank", str(node)),
        *("--nproc-per-node", str(assignment.ranks_per_node)),
        *("--rdzv-backend", "static"),
        *("--master-addr", assignment.address),
        *("--master-port", str(assignment.port)),
        *(() if own is None else ("--local-addr", own)),
        *("--max-restarts", "0"),
        "--no-python",
        *(sys.executable, "-P", "-m", "glmforge_ops.jobs.ranks", str(directory), "--by", "torchrun"),
    ]


def _before(guard: Guard) -> None:
    """In the new process. What is ignored stays ignored in the next program; ranks have handlers of their own."""
    guard.add(os.getpid())
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _children(parent: int) -> list[int]:
    """The ranks' processes that torchrun has started."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                is_rank = b"glmforge_ops.jobs.ranks" in (process / "cmdline").read_bytes()
                if fields[0] not in "ZX" and int(fields[1]) == parent and is_rank:
                    found.append(int(process.name))
    return found
