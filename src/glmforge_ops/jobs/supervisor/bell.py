"""Signals to the supervisor: kept until the loop asks, and a reason to wake up.

The handler interrupts the loop anywhere, also within `wait`. What it does there must not need a lock that the loop
may hold: `SimpleQueue.put` needs none, an `Event` has one.
"""

import signal
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

HEEDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Bell:
    """A context manager that takes `HEEDED`; outside the main thread it takes none."""

    def __init__(self) -> None:
        self._came: SimpleQueue[signal.Signals] = SimpleQueue()
        self._taken: list[signal.Signals] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in HEEDED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def wait(self, seconds: float) -> None:
        """Until a signal comes, at most so long: some seconds, because one that comes just before may wake nobody."""
        if not self._taken:
            with suppress(Empty):
                self._taken.append(self._came.get(timeout=max(0.0, seconds)))

    def take(self) -> list[signal.Signals]:
        """Those that have come since the last look."""
        taken, self._taken = self._taken, []
        return taken + [self._came.get_nowait() for _ in range(self._came.qsize())]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._came.put(signal.Signals(number))
