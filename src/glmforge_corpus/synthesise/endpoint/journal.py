"""What was asked and what came back, appended to one file: the memory of a run that may be killed at any byte.

A line is the CRC-32 of its JSON, a space, the JSON. A line that a kill has torn is the last one, and is cut off at
the next start; a damaged line before it is an error, since something else has been at the file. Entries:

    {"type": "sent", "key", "cost"}         an attempt goes out that may cost so much at most
    {"type": "done", "key", "reply", "cost"}  its reply, paid
    {"type": "refused", "key", "status", "message"}  the server will never answer this one; not paid
    {"type": "unpaid", "key"}               the attempt failed in a way that is not billed (no connection, 429, 5xx)
    {"type": "lost", "key", "cost"}         the attempt may have been billed, but its reply is lost: counted as paid

What was sent and has no later entry was in flight when the run was killed: it becomes "lost" at the next start.
"""

import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from glmforge.data.files import disk_errors
from glmforge.errors import DataError

Entry = dict[str, Any]
_SYNC_SECONDS = 1.0


class Journal:
    """The journal of one output directory; a context manager, held by one process at a time.

    Attributes:
        finished: keys that have a "done" or "refused" entry; replies stay on the disk, see `entry`.
        spent: cost of all replies and of all that may have been billed.
        lost_at_kill: attempts that were in flight when the run before this one was killed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._synced = 0.0
        self.finished: dict[str, tuple[int, int]] = {}  # key -> place and length of its line
        self.spent = 0.0
        self.lost_at_kill = 0

    def __enter__(self) -> Self:
        with disk_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise DataError(
                f"{self._path}: another run is writing here; wait for it, or choose another --out"
            ) from error
        open_attempts = self._replay()
        for key, cost in open_attempts.items():
            self.append({"type": "lost", "key": key, "cost": cost})
        self.lost_at_kill = len(open_attempts)
        return self

    def append(self, entry: Entry) -> None:
        """Add an entry; it outlives this process at once, and the machine within a second or at `close`."""
        assert self._file is not None
        body = json.dumps(entry).encode()  # escapes: a model may utter half a surrogate pair
        with disk_errors(self._path):
            start = self._file.seek(0, os.SEEK_END)
            length = self._file.write(b"%08x " % zlib.crc32(body) + body + b"\n")
            self._file.flush()
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        self._count(entry, start, length)

    def entry(self, key: str) -> Entry | None:
        """The "done" or "refused" entry of a request, or None."""
        assert self._file is not None
        if key not in self.finished:
            return None
        start, length = self.finished[key]
        return _parse(os.pread(self._file.fileno(), length, start))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        with self._file, disk_errors(self._path):
            os.fsync(self._file.fileno())

    def _count(self, entry: Entry, start: int, length: int) -> None:
        self.spent += entry.get("cost", 0.0) if entry["type"] in ("done", "lost") else 0.0
        if entry["type"] in ("done", "refused"):
            self.finished[entry["key"]] = start, length

    def _replay(self) -> dict[str, float]:
        """Read all entries; what is open is returned, a torn end is cut off."""
        assert self._file is not None
        self._file.seek(0)
        open_attempts: dict[str, float] = {}
        good = 0
        for number, line in enumerate(self._file, start=1):
            entry = _parse(line)
            if entry is None:
                if self._file.read(1):
                    raise DataError(
                        f"{self._path}, line {number:,}: damaged; restore it, or remove it to generate (and pay for) "
                        f"everything again"
                    )
                break
            self._count(entry, good, len(line))
            good += len(line)
            if entry["type"] == "sent":
                open_attempts[entry["key"]] = entry["cost"]
            else:
                open_attempts.pop(entry["key"], None)
        self._file.truncate(good)
        return open_attempts


def _parse(line: bytes) -> Entry | None:
    if not line.endswith(b"\n") or len(line) < 11:
        return None
    checksum, _, body = line[:-1].partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    entry: Entry = json.loads(body)
    return entry
