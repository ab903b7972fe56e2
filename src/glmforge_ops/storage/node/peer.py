"""Units from another node, over an ssh connection that this node makes and keeps while it asks the same one again."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator
from typing import Any

from glmforge_ops.hosts.on_node.wire import CHUNK, MARK
from glmforge_ops.storage.node.work import StillAlive

SILENCE_S = 60
"""Without a byte from the other node."""


class PeerFailed(Exception):
    """The other node did not give what it was asked for."""


class Peer:
    """The connection to the node that was asked last; `program` is what runs there."""

    def __init__(self, root: str, program: bytes) -> None:
        self._root, self._program = root, program
        self._name = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def fetch(self, peer: dict[str, Any], asked: dict[str, Any]) -> Iterator[bytes]:
        """The bytes that are `asked` for. Raises `PeerFailed`."""
        kept = self._process is not None and self._name == peer["name"]
        try:
            self._ask(peer, asked)
        except PeerFailed:
            if not kept:
                raise
            self.leave()  # it was idle for long
            self._ask(peer, asked)
        left, alive = asked["length"], StillAlive()
        while left:
            piece = self._read(min(CHUNK, left))
            left -= len(piece)
            alive()
            yield piece

    def leave(self) -> None:
        """End the connection."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process, self._name, self._rest = None, "", b""

    def _ask(self, peer: dict[str, Any], asked: dict[str, Any]) -> None:
        if self._name != peer["name"]:
            self.leave()
            self._join(peer)
        self._tell(json.dumps(asked).encode() + b"\n")
        try:
            answer = json.loads(self._line())
        except ValueError:
            raise PeerFailed("its answer is none") from None
        if "error" in answer:
            raise PeerFailed(str(answer["error"])[:300])

    def _join(self, peer: dict[str, Any]) -> None:
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(peer["command"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        except OSError as error:
            raise PeerFailed(f"'{peer['command'][0]}' cannot be started: {error.strerror}") from None
        self._name = peer["name"]
        order = json.dumps({"mode": "serve", "root": self._root}).encode() + b"\n"
        self._tell(b"%d\n" % len(self._program) + self._program + order)
        while self._line() != MARK:
            pass

    def _tell(self, content: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        view = memoryview(content)
        try:
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except OSError:
            raise PeerFailed(self._last_words()) from None

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            if len(self._rest) > CHUNK:
                raise PeerFailed("its answer is none")
            self._rest += self._read_raw(4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return line + b"\n"

    def _read(self, most: int) -> bytes:
        if self._rest:
            piece, self._rest = self._rest[:most], self._rest[most:]
            return piece
        return self._read_raw(most)

    def _read_raw(self, most: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], SILENCE_S)[0]:
            raise PeerFailed(f"nothing came for {SILENCE_S} s")
        piece = os.read(self._process.stdout.fileno(), most)
        if not piece:
            raise PeerFailed(self._last_words())
        return piece

    def _last_words(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        self._process.kill()
        words = self._process.stderr.read().decode("utf-8", "replace").strip().splitlines()
        return (words[-1] if words else "the connection ended")[:300]
