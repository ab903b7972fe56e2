"""Signals to the supervisor: kept until the loop asks, and a reason to wake up."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

HEEDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Bell:
    """A context manager that takes `HEEDED`; outside the main thread it takes none."""

    def __init__(self) -> None:
        self._rung = threading.Event()
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
        """Until a signal comes, at most so long."""
        self._rung.wait(max(0.0, seconds))

    def take(self) -> list[signal.Signals]:
        """Those that have come since the last look."""
        self._rung.clear()
        taken, self._taken = self._taken, []
        return taken

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._taken.append(signal.Signals(number))
        self._rung.set()
