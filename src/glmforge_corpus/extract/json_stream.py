"""Files of JSON that are no JSON lines: one array of records, or records that are spread over lines.

`as_json_lines` gives the readers of JSON lines what they can read: each record on a line of its own. It is decided by
a file's beginning, and the file is never held as a whole, however large the array. JSON lines pass as they are.
"""

import codecs
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge.errors import DataError

_BEGINNING = 4096
"""Bytes by which it is decided what a file is."""

_DEPTH, _BASE, _IN_STRING, _ESCAPED, _PENDING = range(5)
"""State of the pass: brackets that are open; those of the array around the records (0 or 1); whether in a string;
whether behind a backslash in one; whether something has been written since the last end of a record."""


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
    state = np.zeros(5, np.int64)
    for number, chunk in enumerate(everything):
        data = chunk.removeprefix(codecs.BOM_UTF8) if number == 0 else chunk
        out = np.empty(2 * len(data), np.uint8)
        yield out[: _split(np.frombuffer(data, np.uint8), state, out)].tobytes()
    if state[_DEPTH] or state[_IN_STRING]:
        raise DataError(f"{path}: the JSON ends before its brackets are closed: is the file whole?")


def _needs_splitting(begin: bytes) -> bool:
    """Whether a file that begins so is an array of objects, or has an object whose first line is its bracket alone."""
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"["):
        return text[1:].lstrip()[:1] in (b"{", b"")
    return text.startswith(b"{") and text[1:].lstrip(b" \t\r")[:1] == b"\n"


@compiled
def _split(data: NDArray[np.uint8], state: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """Write `data` with each record on a line of its own; the bytes written. `state` goes from chunk to chunk."""
    depth, base, in_string, escaped, pending = state
    size = 0
    for byte in data:
        if in_string:
            out[size] = byte
            size += 1
            if escaped:
                escaped = 0
            elif byte == 92:
                escaped = 1
            elif byte == 34 or byte == 10:  # a line feed cannot be in a string: the record is damaged, and ends here
                in_string = 0
            continue
        if byte == 91 and depth == 0:  # the array around the records
            depth = base = 1
            continue
        if byte == 93 and depth == base == 1:
            depth = base = 0
            byte = np.uint8(10)
        elif byte == 10 or byte == 13 or byte == 9 or byte == 32:
            if not pending:
                continue
            byte = np.uint8(32)
        elif byte == 44 and depth == base:
            byte = np.uint8(10)
        elif byte == 34:
            in_string = 1
        elif byte == 123 or byte == 91:
            depth += 1
        elif byte == 125 or byte == 93:
            depth = max(depth - 1, base)
        if byte == 10 and not pending:
            continue
        out[size] = byte
        size += 1
        pending = int(byte != 10)
        if depth == base and (byte == 125 or byte == 93):
            out[size] = 10
            size += 1
            pending = 0
    state[0], state[1], state[2], state[3], state[4] = depth, base, in_string, escaped, pending
    return size
