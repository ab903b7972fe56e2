"""Files of JSON that are no JSON lines: one array of records, or records that are spread over lines.

`as_json_lines` gives the readers of JSON lines what they can read: each record on a line of its own. It is decided by
a file's beginning, and the file is never held as a whole, however large the array. JSON lines pass as they are.
"""

import codecs
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from glmforge.errors import DataError

_BEGINNING = 4096
"""Bytes by which it is decided what a file is."""

_TOKEN = re.compile(rb'"|[\[\]{},\n]')
"""What matters outside of strings."""

_STRING = re.compile(rb'(?:[^"\\\n]++|\\.)*+(?:(["\n])|(\\?)\Z)', re.DOTALL)
"""The rest of a string: its end, or the backslash with which the chunk ends. A line feed cannot be in a string: the
record is damaged, and ends there."""


def as_json_lines(chunks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The bytes of a file, each record of an array, or spread over lines, on a line of its own.

    Raises:
        DataError: after all that could be read: the file ends within a record or before the array does.
    """
    first = b""
    for chunk in chunks:
        first += chunk
        if len(first.strip()) >= _BEGINNING:
            break
    everything = itertools.chain([first], chunks)
    if not _needs_splitting(first):
        yield from everything
        return
    splitter = _Splitter()
    for number, chunk in enumerate(everything):
        yield splitter.split(chunk.removeprefix(codecs.BOM_UTF8) if number == 0 else chunk)
    if splitter.unfinished:
        raise DataError(f"{path}: the JSON ends before its brackets are closed: is the file whole?")


def _needs_splitting(begin: bytes) -> bool:
    """Whether a file that begins so is an array of objects, or has an object whose first line is its bracket alone."""
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"["):
        return text[1:].lstrip()[:1] in (b"{", b"")
    return text.startswith(b"{") and text[1:].lstrip(b" \t\r")[:1] == b"\n"


class _Splitter:
    """Puts each record on a line of its own, from chunk to chunk; damage within a record ends with it."""

    def __init__(self) -> None:
        self._depth = self._base = 0  # brackets that are open; of these, the array around the records
        self._in_string = self._escaped = self._pending = False  # pending: something was written since the last line
        self._out: list[bytes] = []

    @property
    def unfinished(self) -> bool:
        return self._depth > 0 or self._in_string

    def split(self, data: bytes) -> bytes:
        """What becomes of the next chunk."""
        self._out, place = [], 0
        while place < len(data):
            if self._in_string:
                place = self._string(data, place)
                continue
            token = _TOKEN.search(data, place)
            stop = token.start() if token else len(data)
            if self._pending or data[place:stop].strip():
                self._write(data[place:stop])
            if token:
                self._token(token[0])
            place = stop + 1
        return b"".join(self._out)

    def _string(self, data: bytes, place: int) -> int:
        """The string from `place` on; the end of it."""
        found = _STRING.match(data, place + self._escaped)
        assert found is not None, "the rest of a chunk always matches"
        self._write(data[place : found.end()])
        self._in_string, self._escaped = found[1] is None, bool(found[2])
        return found.end()

    def _token(self, token: bytes) -> None:
        if token == b"[" and self._depth == 0:
            self._depth = self._base = 1
        elif token == b"]" and self._depth == self._base == 1:
            self._depth = self._base = 0
            self._end_line()
        elif token == b"\n":
            if self._pending:
                self._write(b" ")
        elif token == b"," and self._depth == self._base:
            self._end_line()
        else:
            self._write(token)
            self._in_string = token == b'"'
            self._depth += token in (b"[", b"{")
            if token in (b"]", b"}"):
                self._depth = max(self._depth - 1, self._base)
                if self._depth == self._base:
                    self._end_line()

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        self._pending = True

    def _end_line(self) -> None:
        if self._pending:
            self._out.append(b"\n")
            self._pending = False
