"""Finds the phrases of C4's rules in a line, in any case, and cuts citation marks out of it."""

from typing import Any

import numpy as np

from glmforge.data.compiled import non_allocating

JAVASCRIPT_RULE, POLICY_RULE, LOREM_IPSUM_RULE, CURLY_BRACKET_RULE = 1, 2, 4, 8
"""Bits: rules of phrases."""

_PHRASES = (
    (JAVASCRIPT_RULE, "javascript", 2),
    (POLICY_RULE, "privacy policy", 3),
    (POLICY_RULE, "cookie policy", 3),
    (POLICY_RULE, "uses cookies", 8),
    (POLICY_RULE, "use of cookies", 10),
    (POLICY_RULE, "use cookies", 7),
    (POLICY_RULE, "terms of use", 3),
    (LOREM_IPSUM_RULE, "lorem ipsum", 7),
)  # rule, phrase, place of a pair of letters in it that is rare: va, ki, ms, ps
_LONGEST = max(len(phrase) for _, phrase, _ in _PHRASES)
_PHRASE_BYTES = np.array([list(phrase.encode().ljust(_LONGEST, b"\0")) for _, phrase, _ in _PHRASES], np.uint8)
_PHRASE_SIZES = np.array([len(phrase) for _, phrase, _ in _PHRASES], np.int64)
_PHRASE_RULES = np.array([rule for rule, _, _ in _PHRASES], np.int64)
_PHRASE_PLACES = np.array([place for _, _, place in _PHRASES], np.int64)
_AFTER_ANCHOR = np.zeros(256, np.uint8)  # byte of a pair's first letter -> the second; of a bracket -> anything
for _, _phrase, _place in _PHRASES:
    _AFTER_ANCHOR[[ord(_phrase[_place]), ord(_phrase[_place].upper())]] = ord(_phrase[_place + 1])
_AFTER_ANCHOR[[ord("{"), ord("[")]] = 1
_MARKS = tuple(np.frombuffer(mark, np.uint8) for mark in (b"edit]", b"citation needed]"))

_OPEN, _CLOSE, _CURLY = 0x5B, 0x5D, 0x7B


@non_allocating
def _lowered(byte: int) -> int:
    return byte | 0x20 if 0x41 <= byte <= 0x5A else byte


@non_allocating
def find_phrases(text: Any, start: int, stop: int) -> tuple[int, bool]:
    """(bits of the phrases that a line has, whether it has an opening bracket)."""
    found, has_bracket = 0, False
    for position in range(start, stop):
        byte = text[np.uintp(position)]
        after = _AFTER_ANCHOR[byte]
        if after == 0:
            continue
        if byte == _CURLY:
            found |= CURLY_BRACKET_RULE
        elif byte == _OPEN:
            has_bracket = True
        elif position + 1 < stop and text[position + 1] | 0x20 == after:
            for phrase in range(len(_PHRASE_SIZES)):
                if _lowered(byte) != _PHRASE_BYTES[phrase, _PHRASE_PLACES[phrase]]:
                    continue
                first = position - _PHRASE_PLACES[phrase]
                size = _PHRASE_SIZES[phrase]
                if first < start or first + size > stop:
                    continue
                place = 0
                while place < size and _lowered(text[first + place]) == _PHRASE_BYTES[phrase, place]:
                    place += 1
                if place == size:
                    found |= _PHRASE_RULES[phrase]
    return found, has_bracket


@non_allocating
def _citation_end(text: Any, position: int, stop: int) -> int:
    """Where the citation mark ends whose bracket is at `position`; `position` if it is none."""
    after = position + 1
    while after < stop and 0x30 <= text[after] <= 0x39:
        after += 1
    if after < stop and text[after] == _CLOSE:
        return after + 1
    for mark in _MARKS:
        if position + 1 + len(mark) <= stop:
            place = 0
            while place < len(mark) and text[position + 1 + place] == mark[place]:
                place += 1
            if place == len(mark):
                return position + 1 + place
    return position


@non_allocating
def copy_without_citations(text: Any, start: int, stop: int, out: Any, position: int) -> tuple[int, int]:
    """Write a line without its citation marks to `out`; (its end there, number of marks)."""
    marks = 0
    while start < stop:
        if text[start] == _OPEN:
            end = _citation_end(text, start, stop)
            if end > start:
                marks += 1
                start = end
                continue
        out[position] = text[start]
        position += 1
        start += 1
    return position, marks
