"""The records at the end of a JSONL file: so that it costs the same after a thousand attempts.

A line may be cut, since a node may die while it writes. Where a person is told what a file says, another damaged line
is an error that names the file; where a program has to go on, such a line says nothing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glmforge.errors import LaunchError
from glmforge.files import parse_json, read_end, shown

END_BYTES = 1 << 16
"""What is read of the end of a file."""


def last_records(path: Path) -> list[dict[str, Any]]:
    """In their order, none if there is no file; a last line that was cut is left out.

    Raises `LaunchError` if another line is damaged.
    """
    lines = _lines(path)
    found = []
    for number, line in enumerate(lines):
        try:
            found += [_record(path, line)] if line.strip() else []
        except (LaunchError, UnicodeDecodeError) as error:
            if number < len(lines) - 1:
                raise LaunchError(f"{shown(path)}: a line of it is damaged ({error}); delete that line") from None
    return found


def newest_records(path: Path, *words: str) -> Iterator[dict[str, Any]]:
    """The newest first, none if there is no file; damaged lines are left out. Raises `LaunchError`: no plain file.

    Args:
        words: if there are any, only records with one of these as a string somewhere; others are not decoded.
    """
    wanted = [f'"{word}"'.encode() for word in words]
    for line in reversed(_lines(path)):
        if wanted and not any(word in line for word in wanted):
            continue
        try:
            yield _record(path, line)
        except (LaunchError, UnicodeDecodeError):  # empty, cut, or damaged
            continue


def _lines(path: Path) -> list[bytes]:
    """Whole ones, but perhaps the last."""
    if not path.exists():
        return []
    content = read_end(path, error=LaunchError, max_bytes=END_BYTES)
    return content.split(b"\n")[1 if len(content) == END_BYTES else 0 :]


def _record(path: Path, line: bytes) -> dict[str, Any]:
    return parse_json(line.decode(), dict, source=shown(path), error=LaunchError)
