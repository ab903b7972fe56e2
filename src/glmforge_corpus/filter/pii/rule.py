"""What a rule for personal data in digits is: a shape, a check, and perhaps words that must be near."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

LEAD, TAIL = 48, 40
"""Bytes of a window before and behind the run of digits."""


class Window(NamedTuple):
    """The surroundings of a candidate.

    Attributes:
        data: bytes of the document, at most `LEAD` before and `TAIL` behind the run.
        start: of the run in `data`.
        cut_left, cut_right: whether the document goes on before and behind `data`.
    """

    data: bytes
    start: int
    cut_left: bool
    cut_right: bool

    def mentions(self, names: re.Pattern[bytes], match: re.Match[bytes]) -> bool:
        """Whether one of the words stands near the match; a run may be long, and so the window."""
        return names.search(self.data[max(0, match.start() - LEAD) : match.end() + TAIL]) is not None


Check = Callable[[Window, re.Match[bytes]], "re.Match[bytes] | tuple[int, int] | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One shape with its check.

    Attributes:
        name: counted under it.
        kind: what replaces it.
        digits: fewer digits in the run are not looked at.
        hints: nor is a run that has none of these hints (see `scan.py`), unless 0.
        shape: of the whole thing.
        check: whether it is one; may narrow the span.
        context: what must stand in the window, too.
        behind: whether the context must be right before the run.
    """

    name: str
    kind: str
    digits: int
    hints: int
    shape: re.Pattern[bytes]
    check: Check
    context: re.Pattern[bytes] | None = None
    behind: bool = False

    def find(self, window: Window) -> Iterator[tuple[int, int]]:
        """Spans in the window."""
        if self.context and not self.context.search(window.data, 0, window.start if self.behind else len(window.data)):
            return
        for match in self.shape.finditer(window.data, 1 if window.cut_left else 0):
            if match.end() == len(window.data) and window.cut_right:
                continue
            if match.end() <= window.start:  # its own window has all that stands before it
                continue
            found = self.check(window, match)
            if found is not None:
                yield found if isinstance(found, tuple) else found.span()


def digits_of(match: re.Match[bytes]) -> str:
    """Its digits alone."""
    return re.sub(rb"\D", b"", match[0]).decode()


def compact(match: re.Match[bytes]) -> str:
    """It without separators."""
    return re.sub(rb"[ .\-]", b"", match[0]).decode()


def on_digits(valid: Callable[[str], bool]) -> Check:
    """The check that asks `valid` about the digits."""
    return lambda window, match: match if valid(digits_of(match)) else None


def on_compact(valid: Callable[[str], bool]) -> Check:
    """The check that asks `valid` about digits and letters."""
    return lambda window, match: match if valid(compact(match)) else None


def words(*names: str) -> re.Pattern[bytes]:
    """A context: one of these words (regular expressions), in any case."""
    return re.compile(rf"(?i)(?<![a-z<])(?:{'|'.join(names)})(?![a-z])".encode())
