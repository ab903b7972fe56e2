"""The answers so far of a file of prompts, in a file that only grows: `ANSWERS.unfinished`.

Its first line says of which command they are. In each line behind it stand a checksum, of the command and of the
answer, and the answer: a line that is damaged, or of another command, is none, and its prompt is answered again.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from glmforge.errors import DataError
from glmforge.observe.units import counted

_log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """An answer in the file: to which line, whether it is an error, and where its JSON stands."""

    line: int
    is_error: bool
    place: int


class Unfinished:
    """The file at `path`, open to read and to append to; `command` is whatever the answers depend on."""

    def __init__(self, file: BinaryIO, path: Path, command: dict[str, object]) -> None:
        self._file, self._path, self._command = file, path, _json(command)

    def begin(self) -> set[int]:
        """The numbers of the lines that earlier starts of the command have answered.

        Raises:
            DataError: the file is another command's, or nothing in it can be read.
        """
        self._file.seek(0)
        first, num_others, end = self._file.readline(), 0, 0
        for line in self._file:
            num_others += line.endswith(b"\n")
            end += len(line) if line.endswith(b"\n") else 0
        if self._command.startswith(first) and first != self._command:  # new, or not even that was written whole
            self._file.truncate(0)
            self._append(self._command)
            return set()
        kept = list(self.answers())
        if first != self._command and not kept:
            raise DataError(
                f"{self._path}: has answers to other prompts, of another model or under other settings; "
                "give the command that began it, remove it, or replace it with --force"
            )
        if len(kept) < num_others:
            number = counted(num_others - len(kept), "line")
            _log.warning("%s: %s damaged or of another command; answered again", self._path, number)
        self._file.truncate(len(first) + end)  # a line that was not written whole, as when a machine stops
        return {one.line for one in kept}

    def add(self, answer: dict[str, object]) -> None:
        """Keep an answer, with the number of its `line`."""
        content = _json(answer)
        self._append(self._checksum(content) + b" " + content)

    def answers(self) -> Iterator[Kept]:
        """All that are as they were written."""
        self._file.seek(0)
        place = len(self._file.readline())
        for line in self._file:
            checksum, _, content = line.partition(b" ")
            if content and checksum == self._checksum(content):
                answer = json.loads(content)
                yield Kept(answer["line"], "error" in answer, place + len(line) - len(content))
            place += len(line)

    def at(self, place: int) -> bytes:
        """The answer that stands there, a line of JSON."""
        self._file.seek(place)
        return self._file.readline()

    def _append(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()

    def _checksum(self, content: bytes) -> bytes:
        return hashlib.sha256(self._command + content).hexdigest()[:16].encode()


def _json(value: dict[str, object]) -> bytes:
    # In a JSON string, what Python writes for a character without UTF-8 is its escape.
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
