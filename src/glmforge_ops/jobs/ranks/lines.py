"""What a command prints, as lines that are safe to keep: whole, bounded, printable.

Bytes that are no UTF-8 and characters that steer a terminal stand as their escapes; colours are left out. A progress
bar, which writes its line again and again with carriage returns, gives its last state, and one every `BAR_EVERY_S`.
"""

import re
import time

MAX_LINE = 16 << 10
"""Bytes of a line that are kept."""

BAR_EVERY_S = 10.0

_BREAKS = re.compile(rb"(\r\n|\n|\r)")
_CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


class LineReader:
    """Makes lines of one stream. Two streams of a process have a reader each, so that their lines do not mix."""

    def __init__(self) -> None:
        self._part = bytearray()
        self._left_out = 0
        self._bar: str | None = None
        self._bar_shown: float | None = None

    def feed(self, data: bytes, now: float) -> list[str]:
        """Lines that have ended with `data`; `now` in seconds of any clock."""
        lines: list[str] = []
        pieces = _BREAKS.split(data)
        for index in range(0, len(pieces), 2):
            self._add(pieces[index])
            end = pieces[index + 1] if index + 1 < len(pieces) else b""
            if end == b"\r":
                self._redraw(lines, now)
            elif end:
                self._end_line(lines)
        return lines

    def end(self) -> list[str]:
        """What has not ended with a line break."""
        lines: list[str] = []
        if self._part or self._left_out or self._bar is not None:
            self._end_line(lines)
        return lines

    def _add(self, piece: bytes) -> None:
        room = MAX_LINE - len(self._part)
        self._part += piece[:room]
        self._left_out += max(0, len(piece) - room)

    def _redraw(self, lines: list[str], now: float) -> None:
        if not self._part:
            return
        self._bar = self._take()
        if self._bar_shown is None or now - self._bar_shown >= BAR_EVERY_S:
            lines.append(self._bar)
            self._bar, self._bar_shown = "", now

    def _end_line(self, lines: list[str]) -> None:
        """A line that stands behind a carriage return alone is what was there before it."""
        if self._part or self._bar is None:
            lines.append(self._take())
        elif self._bar:
            lines.append(self._bar)
        self._bar = self._bar_shown = None

    def _take(self) -> str:
        text = printable(bytes(self._part)) + (f" ... ({self._left_out} bytes more)" if self._left_out else "")
        self._part.clear()
        self._left_out = 0
        return text


def printable(line: bytes) -> str:
    """A line without what could steer a terminal."""
    text = _CONTROL_SEQUENCE.sub(b"", line).decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text)


def timestamp(now: float) -> str:
    """UTC with microseconds, as records and logs have it: 2026-01-31T23:59:59.123456Z."""
    microseconds = round(now * 1e6)
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(microseconds // 1_000_000))
    return f"{seconds}.{microseconds % 1_000_000:06d}Z"
