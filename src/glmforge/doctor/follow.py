"""A JSONL file read while another process writes it: whole lines as they come, also after it was cut or replaced.

A run that resumes or rolls back cuts its metrics after the step that it goes back to, and may have grown past the old
end before anybody looks again. So a reader keeps the last line that it has read and looks for it again: if it is no
longer where it was, the file is read anew.
"""

import os
from contextlib import suppress
from pathlib import Path

from glmforge.files import open_regular
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import decode_line

TAIL_BYTES = 1 << 21
"""Of a file that is read for the first time, or anew."""

_MAX_READ = 1 << 24


class Follower:
    """Reads on from where it was. A damaged line is passed over, a line that is being written waits for its end."""

    def __init__(self, path: Path, *, tail_bytes: int = TAIL_BYTES) -> None:
        self.path, self._tail_bytes = path, tail_bytes
        self._offset = 0
        self._last = b""
        self._inode = -1

    def poll(self) -> tuple[bool, list[Record]]:
        """Whether what was read before is no longer true, and the records since."""
        try:
            file = open_regular(self.path)
        except OSError:
            was_there, self._inode = self._inode != -1, -1
            self._offset, self._last = 0, b""
            return was_there, []
        with file:
            found = os.fstat(file.fileno())
            file.seek(self._offset - len(self._last))
            is_new = self._inode == -1
            is_cut = not is_new and (
                found.st_ino != self._inode or found.st_size < self._offset or file.read(len(self._last)) != self._last
            )
            if is_new or is_cut:
                start = max(0, found.st_size - self._tail_bytes)
                file.seek(start)
                if start:
                    start += len(file.readline())
                self._inode, self._offset, self._last = found.st_ino, start, b""
            file.seek(self._offset)
            content = file.read(_MAX_READ)
        end = content.rfind(b"\n") + 1
        if end == 0:
            return is_cut, []
        lines = content[:end].splitlines(keepends=True)
        self._offset, self._last = self._offset + end, lines[-1]
        records = []
        for line in lines:
            with suppress(RecursionError):
                record = decode_line(line)
                records += [record] if record is not None else []
        return is_cut, records
