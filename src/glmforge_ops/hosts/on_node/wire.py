"""How a process on a node talks with the one that started it: lines of JSON.

A process that receives no order within `IDLE_S` seconds is ended by its own alarm.
"""

from __future__ import annotations

import json
import signal
import sys

TYPE_CHECKING = False  # as in typing, whose import takes longer than all others here
if TYPE_CHECKING:
    from typing import Any

MARK = b"glmforge-node 1\n"
"""The line after which answers stand; what a login shell prints comes before it."""

IDLE_S = 300


def begin() -> dict[str, Any] | None:
    """Say that the program runs, and read its order; None if standard input has ended."""
    sys.stdout.buffer.write(b"\n" + MARK)  # a login shell may have left its line open
    sys.stdout.buffer.flush()
    signal.alarm(IDLE_S)
    line = sys.stdin.buffer.readline()
    signal.alarm(0)
    return json.loads(line) if line.endswith(b"\n") else None


def say(answer: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()
