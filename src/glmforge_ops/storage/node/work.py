"""What those who work on a node's files share."""

from __future__ import annotations

import os
import time
from pathlib import Path

from glmforge_ops.hosts.on_node.wire import say

_SAY_EVERY_S = 5


class Refused(Exception):
    """What cannot be done here; the message is one line for a person."""


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
