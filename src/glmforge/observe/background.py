"""A sink on a thread of its own, so that training never waits for it.

    Background(TensorBoard(directory))

Records wait in a queue of limited length. While it is full they are omitted, with a warning; a sink that keeps it full
for longer than a limit raises, and the bus drops it. What the sink itself raises comes out at the next call. A process
that is killed loses what waits in the queue, so the run's own files are written at once instead
(`glmforge.observe.run_sinks.RunFiles`).
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Full, Queue
from threading import Thread

from glmforge.errors import GlmforgeError
from glmforge.observe.bus import Kind, Sink
from glmforge.observe.metric_table import MetricTable
from glmforge.observe.metrics import Record

logger = logging.getLogger(__name__)


class SlowSinkError(GlmforgeError):
    """A sink that does not keep up."""


class Background:
    """Gives `sink` its calls in their order, on one thread.

    Args:
        capacity: records that may wait.
        limit_s: how long the queue may be full; it counts until it is half empty again.
        close_s: how long `close` waits for what is left.
        clock: seconds, monotonic; tests give their own.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        capacity: int = 1000,
        limit_s: float = 60.0,
        close_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = sink.name
        self._sink = sink
        self._capacity, self._limit_s, self._close_s, self._clock = capacity, limit_s, close_s, clock
        self._queue: Queue[Callable[[], None] | None] = Queue(capacity)
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._full_since: float | None = None
        self._has_given_up = False

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        self._raise_error()
        if self._thread is None:
            self._queue, self._error, self._full_since = Queue(self._capacity), None, None
            self._thread = Thread(target=self._work, args=(self._queue,), name=f"sink {self.name}", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(partial(self._sink.open, step, tokens, table))
        except Full:  # without it, later records would stand behind those of steps that no longer count
            raise self._give_up("its queue is full") from None

    def write(self, kind: Kind, record: Record) -> None:
        if self._thread is None:
            return
        self._raise_error()
        try:
            self._queue.put_nowait(partial(self._sink.write, kind, record))
        except Full:
            self._wait_for_room()
        else:
            if self._full_since is not None and self._queue.qsize() <= self._capacity // 2:
                self._full_since = None

    def close(self) -> None:
        if self._thread is None:
            return
        self._raise_error()
        thread, self._thread = self._thread, None
        try:
            self._queue.put(None, timeout=self._close_s)
            thread.join(self._close_s)
        except Full:
            pass
        self._raise_error()
        if thread.is_alive():
            raise self._give_up(f"did not write its last records within {self._close_s:.0f} s")

    def _work(self, queue: Queue[Callable[[], None] | None]) -> None:
        try:
            while (call := queue.get()) is not None and not self._has_given_up:
                call()
            self._sink.close()
        except Exception as error:  # noqa: BLE001 - raised at the sink's next call
            self._error = error
            with suppress(Exception):
                self._sink.close()

    def _wait_for_room(self) -> None:
        now = self._clock()
        if self._full_since is None:
            self._full_since = now
            logger.warning("%s does not keep up; records are dropped until it does", self.name)
        if now - self._full_since > self._limit_s:
            raise self._give_up(f"has not kept up for {now - self._full_since:.0f} s")

    def _raise_error(self) -> None:
        if self._error is not None:
            self._thread = None
            raise self._error

    def _give_up(self, reason: str) -> SlowSinkError:
        """The thread ends when its call returns, or with the process."""
        self._thread, self._has_given_up = None, True
        return SlowSinkError(reason)
