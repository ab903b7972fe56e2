"""How a node's process talks with the one that started it: lines of JSON, and bytes after some of them.

All waits are bounded. A process that hears nothing for `IDLE_S` seconds is ended by its own alarm, and with it go its
locks and its connections.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = b"glmforge-node 1\n"
"""The first line; what a login shell prints comes before it."""

CHUNK = 1 << 20
IDLE_S = 300
_SAY_EVERY_S = 5


class Refused(Exception):
    """What cannot be done here; the message is one line for a person."""


def say(answer: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def listen() -> dict[str, Any] | None:
    """The next line; None when there is nobody any more."""
    signal.alarm(IDLE_S)
    line = sys.stdin.buffer.readline()
    signal.alarm(0)
    return json.loads(line) if line.endswith(b"\n") else None


def read_bytes(length: int) -> Iterator[bytes]:
    """The next `length` bytes; the process ends if they do not come."""
    while length:
        signal.alarm(IDLE_S)
        piece = sys.stdin.buffer.read(min(CHUNK, length))
        signal.alarm(0)
        if not piece:
            sys.exit(1)
        length -= len(piece)
        yield piece


class StillAlive:
    """Tells the other side now and then that long work goes on."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last > _SAY_EVERY_S:
            self._last = time.monotonic()
            say({"busy": True})


def sync_directory(path: Path) -> None:
    """Force the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
