"""Writes a rank's files in a thread of its own: storage that hangs, fails or is full never holds up a rank.

What cannot be written is dropped and counted, and the log says so as soon as it can be written to again.
"""

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

MAX_WAITING = 8 << 20
"""Bytes of a log that wait for storage; the rank waits too when there are more, but for `HANGS_AFTER_S` only."""

HANGS_AFTER_S = 2.0


class Writer:
    """Does what it is given, in order, in a thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)

    def start(self) -> None:
        """Not before the processes are forked that are not to inherit a lock of the thread's."""
        self._thread.start()

    def do(self, work: Callable[[], object]) -> None:
        """`work` handles its own errors of storage."""
        self._queue.put(work)

    def close(self, timeout_s: float) -> bool:
        """Whether all was done in time; storage that hangs would keep the job's node for ever."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


class RankLog:
    """A rank's log, written line by line: time, rank, step, text, with a blank between them; "-" for an unknown step.

    Args:
        limit: most bytes that it may hold; None: no limit.
    """

    def __init__(self, path: Path, rank: int, limit: int | None, writer: Writer) -> None:
        self.path, self.rank, self.limit = path, rank, limit
        self._writer = writer
        self._changed = threading.Condition()
        self._waiting = 0
        self._hangs = False
        self._file: int | None = None
        self._size = 0
        self._full = False
        self._untold = 0
        self._why = ""
        self.dropped = 0

    def add(self, stamp: str, step: int | None, lines: list[str]) -> None:
        """Called by one thread; the writer's writes."""
        head = f"{stamp} {self.rank} {'-' if step is None else step} "
        data = "".join(f"{head}{line}\n" for line in lines).encode()
        if not self._make_room(len(data)):
            self._drop(len(lines), "storage was too slow")
            return
        self._writer.do(lambda: self._append(head, data, len(lines)))

    def _make_room(self, size: int) -> bool:
        """Wait for storage that is slower than the rank; not for one that hangs, which is waited for once only."""
        with self._changed:
            fits = self._changed.wait_for(
                lambda: not self._waiting or self._waiting + size <= MAX_WAITING, 0 if self._hangs else HANGS_AFTER_S
            )
            self._hangs = not fits
            self._waiting += size if fits else 0
        return fits

    def close(self, stamp: str) -> None:
        """Say what was dropped, if that can be written now."""
        self._writer.do(lambda: self._end(f"{stamp} {self.rank} - "))

    def _append(self, head: str, data: bytes, count: int) -> None:
        with self._changed:
            self._waiting -= len(data)
            self._changed.notify()
        if self._full:
            self._drop(count, "")
        elif self.limit is not None and self._size + len(data) > self.limit:
            self._full = True
            self._write(f"{head}[glmforge] the limit of {self.limit} bytes is reached: no more is kept\n".encode())
            self._drop(count, "")
        elif not (self._tell(head) and self._write(data)):
            self._drop(count, self._why)

    def _end(self, head: str) -> None:
        if self._full:
            self._write(f"{head}[glmforge] {self.dropped} lines were dropped in all\n".encode())
        else:
            self._tell(head)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _tell(self, head: str) -> bool:
        with self._changed:
            untold = self._untold
        if not untold:
            return True
        if not self._write(f"{head}[glmforge] {untold} lines were dropped: {self._why}\n".encode()):
            return False
        with self._changed:
            self._untold -= untold
        return True

    def _drop(self, count: int, why: str) -> None:
        with self._changed:
            self.dropped += count
            self._untold += count
            self._why = why or self._why

    def _write(self, data: bytes) -> bool:
        """All of it or nothing, so that no line is ever half."""
        done = 0
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._size = os.fstat(self._file).st_size
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError as error:
            self._why = error.strerror or type(error).__name__
            self._undo(done)
            return False
        self._size += done
        return True

    def _undo(self, done: int) -> None:
        if self._file is None or not done:
            return
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._size += done
