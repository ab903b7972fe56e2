"""A process of ours on a node: started over ssh (or here), spoken to in lines of JSON, ended with the one who asked.

The program is sent as text, so the node needs Python and nothing of glmforge. What the node says is bounded and checked
before it is believed to be an answer.
"""

import contextlib
import json
import os
import resource
import select
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from glmforge.errors import HostError
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import UNREACHABLE, Ssh, explain_unreachable, last_line
from glmforge_ops.hosts.on_node.wire import BEFORE, CHUNK, IDLE_S, MARK
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, parse_line

_NODE = "glmforge_ops.storage.node"
_FILES = (WIRE, *(f"{_NODE}.{name}" for name in ("work", "units", "peer", "transfer")))

TRANSFER = RemoteProgram(_FILES, oldest="3.9")
COPIES = RemoteProgram((*_FILES, f"{_NODE}.copies"), oldest="3.9")
CLEAN = RemoteProgram((WIRE, "glmforge.runtime.traces", f"{_NODE}.leftovers", f"{_NODE}.clean"), oldest="3.9")

_MAX_LINE = 64 << 20
_MAX_VALUES = 1 << 23  # the units of a directory that is staged
_MAX_BANNER = 1 << 20


class NodeLost(HostError):
    """The process on the node, or the way to it, is no more; the message is one line without the node's name."""


class NodeRefused(HostError):
    """The node's process cannot do what it is asked; the message is one line without the node's name."""


def allow_connections(num_hosts: int) -> None:
    """Every node takes three descriptors here; the usual limit of 1,024 is for fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * num_hosts + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class Connection:
    """A process on `host`. Used by one thread; `kill` may be called from any."""

    def __init__(self, host: str, ssh: Ssh, python: str, program: RemoteProgram = TRANSFER) -> None:
        self.host = host
        self._buffer = b""
        command, pipe = program.command(host, ssh, python), subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
            )
        except OSError as error:
            raise NodeLost(f"'{command[0]}' cannot be started here: {error.strerror}; install it") from None
        self._stderr = b""
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        self.send(program.sent())

    def start(self, order: Mapping[str, Any]) -> None:
        """Give the process its order, once it runs."""
        passed = 0
        while (line := self._line()) != MARK:
            passed += len(line)
            if passed > _MAX_BANNER:
                raise NodeLost("its login shell prints without an end; look at its startup files")
        self.tell(order)

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send a line."""
        self.send(json.dumps(order).encode() + b"\n")

    def send(self, content: bytes) -> None:
        """Send bytes; the process must read them, or the node counts as lost."""
        assert self._process.stdin is not None
        view, deadline = memoryview(content), time.monotonic() + IDLE_S
        descriptor = self._process.stdin.fileno()
        os.set_blocking(descriptor, False)
        while view:
            if not select.select([], [descriptor], [], 5)[1]:
                if time.monotonic() > deadline:
                    raise NodeLost(f"took nothing for {IDLE_S} s; look at its disk, its load and its link")
                continue
            try:
                view = view[os.write(descriptor, view[:CHUNK]) :]
            except BlockingIOError:
                continue
            except OSError:
                self._raise_refusal()
                raise self._why_lost() from None
            deadline = time.monotonic() + IDLE_S

    def answer(self) -> dict[str, Any]:
        """The next answer. Raises `NodeRefused`, `NodeLost`."""
        while True:
            try:
                answer = parse_line(self._line(), self.host, _MAX_VALUES)
            except HostError:
                raise NodeLost("gave an answer that is none") from None
            if "refused" in answer:
                raise NodeRefused(last_line(str(answer["refused"])))
            if not answer.keys() & BEFORE:
                return answer

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line and wait for the answer."""
        self.tell(order)
        return self.answer()

    def read(self, length: int) -> Iterator[bytes]:
        """Bytes that follow an answer."""
        while length:
            if not self._buffer:
                self._buffer = self._more()
            piece, self._buffer = self._buffer[:length], self._buffer[length:]
            length -= len(piece)
            yield piece

    def kill(self) -> None:
        """End the process here; the one on the node ends with it."""
        self._process.kill()

    def close(self) -> None:
        """The process on the node ends by itself, when it has read that there is nothing more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _raise_refusal(self) -> None:
        """What the process said before it ended, if it said that it cannot do something."""
        with contextlib.suppress(NodeLost):
            while True:
                self.answer()

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MAX_LINE:
                raise NodeLost("gave an answer without an end")
            self._buffer += self._more()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def _more(self) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], IDLE_S)[0]:
            raise NodeLost(f"said nothing for {IDLE_S} s; look at its disk, its load and its link")
        piece = os.read(descriptor, CHUNK)
        if not piece:
            raise self._why_lost()
        return piece

    def _why_lost(self) -> NodeLost:
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join(5)
        said = self._stderr.decode(errors="replace")
        if status == UNREACHABLE and self.host not in LOCAL:
            meaning, mend = explain_unreachable(said)
            return NodeLost(f"ssh does not reach it ({meaning}); {mend}")
        if status == 127:
            return NodeLost(f"cannot run python there ({last_line(said)}); give 'python' in cluster.yaml")
        return NodeLost(f"its process ended: {last_line(said) or f'status {status}'}")

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            while piece := pipe.read(CHUNK):
                self._stderr = (self._stderr + piece)[-(1 << 14) :]
