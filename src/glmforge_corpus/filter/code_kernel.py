"""Compiled measures of a program's text: lines, kinds of bytes, runs of encoded data, comments.

Encoded data are what the filter of The Stack v2 calls so: runs of 64 and more characters of base64, of eight and more
bytes in hexadecimal (bare, `0x..` or `\\x..`, perhaps with commas and blanks between), of eight and more `\\uXXXX`.
Unlike its base64 pattern, ours needs an upper and a lower case letter and a digit in a run, so that rulers and long
identifiers are no data. Pieces with no more than line ends, quotes and operators between count as one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled, non_allocating

LINES, LONGEST_LINE, LETTERS, DIGITS, SPACES, ENCODED, LONGEST_RUN, COMMENT_LINES, FILLED_LINES, DATA_LINES, VISIBLE = (
    range(11)
)
NUM_MEASURES = 11

MIN_BASE64 = 64
MIN_BYTES = 8
_OTHER, _DIGIT, _HEX_LOWER, _HEX_UPPER, _LOWER, _UPPER, _BASE64_SIGN, _DATA_SIGN = range(8)


def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(256, _OTHER, np.uint8)
    for members, kind in (
        (b"0123456789", _DIGIT),
        (b"abcdef", _HEX_LOWER),
        (b"ABCDEF", _HEX_UPPER),
        (b"ghijklmnopqrstuvwxyz", _LOWER),
        (b"GHIJKLMNOPQRSTUVWXYZ", _UPPER),
        (b"+/=", _BASE64_SIGN),
        (b",.-+[](){};:\"' \t", _DATA_SIGN),
    ):
        for byte in members:
            kinds[byte] = kind if kinds[byte] == _OTHER else kinds[byte]
    return kinds


KINDS = _kinds()


@non_allocating
def _base64_run(text: NDArray[np.uint8], at: int, stop: int) -> tuple[int, bool]:
    """(end of the run of base64 characters at `at`, whether it has digits and both cases)."""
    digit = lower = upper = False
    while at < stop:
        kind = KINDS[text[at]]
        if kind in (_OTHER, _DATA_SIGN):
            break
        digit |= kind == _DIGIT
        lower |= kind in (_LOWER, _HEX_LOWER)
        upper |= kind in (_UPPER, _HEX_UPPER)
        at += 1
    return at, digit and lower and upper


@non_allocating
def _is_hex(byte: int) -> bool:
    kind = KINDS[byte]
    return bool(kind in (_DIGIT, _HEX_LOWER, _HEX_UPPER))


@non_allocating
def _hex_run(text: NDArray[np.uint8], at: int, stop: int) -> tuple[int, int]:
    """(end, number of bytes) of a run of `0x41, 0x42`, `\\x41\\x42`, `\\u0041` or `41 42` at `at`."""
    count, end = 0, at
    while True:
        start = at
        width = 2
        if at + 1 < stop and ((text[at] == 48 and text[at + 1] == 120) or (text[at] == 92 and text[at + 1] == 120)):
            at += 2
        elif at + 1 < stop and text[at] == 92 and text[at + 1] == 117:
            at, width = at + 2, 4
        elif count and start == end:  # bare bytes stand apart
            return end, count
        first = at
        while at < stop and at - first < width and _is_hex(text[at]):
            at += 1
        if at - first < width or (at < stop and _is_hex(text[at]) and width == 2 and text[start] != 92):
            return end, count
        count, end = count + 1, at
        while at < stop and (text[at] == 44 or text[at] == 32 or text[at] == 10 or text[at] == 9 or text[at] == 13):
            at += 1
        if at == end and (at >= stop or text[at] != 92):
            return end, count


@non_allocating
def _measure_encoded(text: NDArray[np.uint8], start: int, stop: int, row: Any) -> None:
    """Bytes in runs of encoded data, and the longest such run, in `text[start:stop]`."""
    at = start
    run = 0  # bytes of encoded data with nothing between but line ends, quotes and the like
    gap = 0
    while at < stop:
        byte = text[at]
        kind = KINDS[byte]
        begins = at == start or KINDS[text[at - 1]] in (_OTHER, _DATA_SIGN, _BASE64_SIGN) or byte == 92
        end = at
        if begins and (kind in (_DIGIT, _HEX_LOWER, _HEX_UPPER) or byte == 92):
            hex_end, count = _hex_run(text, at, stop)
            if count >= MIN_BYTES:
                end = hex_end
        if end == at and begins and kind != _OTHER and kind != _DATA_SIGN:
            base64_end, mixed = _base64_run(text, at, stop)
            if base64_end - at >= MIN_BASE64 and mixed:
                end = base64_end
            elif base64_end - at > 1:  # nothing else can begin inside
                gap += base64_end - at
                at = base64_end
                if gap > 8:
                    run = 0
                continue
        if end > at:
            run, gap = run + end - at, 0
            row[ENCODED] += end - at
            row[LONGEST_RUN] = max(row[LONGEST_RUN], run)
            at = end
        else:
            at, gap = at + 1, gap + 1
            if gap > 8:
                run = 0


@non_allocating
def _measure_line(text: NDArray[np.uint8], start: int, stop: int, row: Any, in_comment: bool) -> bool:
    """Count one line; whether a block comment goes on behind it."""
    row[LINES] += 1
    row[LONGEST_LINE] = max(row[LONGEST_LINE], stop - start)
    first, last = start, stop - 1
    while first < stop and text[first] <= 32:
        first += 1
    if first == stop:
        return in_comment
    while text[last] <= 32:
        last -= 1
    row[FILLED_LINES] += 1
    byte, after = text[first], text[min(first + 1, last)]
    begins = byte == 47 and after == 42
    ends = last > first and text[last] == 47 and text[last - 1] == 42
    slashes = byte == 47 and after == 47
    hashes = byte == 35 and (after == 32 or after == 35 or after == 33 or first == last)
    dashes = byte == 45 and after == 45
    if in_comment or begins or slashes or hashes or dashes or byte == 59 or byte == 37:
        row[COMMENT_LINES] += 1
    data = digits = 0
    for at in range(first, last + 1):
        kind = KINDS[text[at]]
        digits += kind == _DIGIT
        data += kind in (_DIGIT, _DATA_SIGN) or text[at] == 120 or text[at] == 43
    row[DATA_LINES] += digits >= 4 and 10 * data >= 9 * (last + 1 - first)
    return (in_comment or begins) and not ends


@non_allocating
def measure_program(text: NDArray[np.uint8], start: int, stop: int, row: Any) -> None:
    """The measures of `text[start:stop]` into `row` `[NUM_MEASURES]`."""
    row[:] = 0
    line, in_comment, in_tag = start, False, False
    for at in range(start, stop):
        byte = text[at]
        kind = KINDS[byte]
        row[LETTERS] += (_HEX_LOWER <= kind <= _UPPER) or (byte & 0xC0) == 0xC0
        row[DIGITS] += kind == _DIGIT
        row[SPACES] += byte <= 32
        if byte == 60:
            in_tag = True
        row[VISIBLE] += byte > 32 and not in_tag
        if byte == 62:
            in_tag = False
        if byte == 10:
            in_comment = _measure_line(text, line, at, row, in_comment)
            line = at + 1
    if line < stop:
        _measure_line(text, line, stop, row, in_comment)
    _measure_encoded(text, start, stop, row)


@compiled
def measure_programs(text: NDArray[np.uint8], offsets: NDArray[np.int64], wanted: NDArray[np.bool_]) -> Any:
    """`[n, NUM_MEASURES]`, zeros where not wanted."""
    rows = np.zeros((len(offsets) - 1, NUM_MEASURES))
    for index in range(len(offsets) - 1):
        if wanted[index]:
            measure_program(text, offsets[index], offsets[index + 1], rows[index])
    return rows
