"""One JSON value at a time (RFC 8259): compiled functions that read it from UTF-8 and say where it ends.

A place of -1 means that the value is not JSON, or that it is out of the ordinary: a lone surrogate, a number that may
be too large for a double, lists in lists beyond any use. Strings are looked at eight bytes at a time for a quote, a
backslash or a control character, and copied on the way. Whether the bytes are UTF-8 is not checked.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import TOP_BITS, load64, store64, trailing_zeros
from glmforge.data.compiled import non_allocating

QUOTE, COMMA, COLON, OPEN_OBJECT, CLOSE_OBJECT = 34, 44, 58, 123, 125
TAB, NEWLINE, RETURN, BLANK = 9, 10, 13, 32
_OPEN_LIST, _BACKSLASH, _CLOSE_LIST = 91, 92, 93
_MINUS, _POINT, _SLASH, _ZERO, _NINE = 45, 46, 47, 48, 57

_ONES = np.uint64(0x0101010101010101)
_QUOTES = np.uint64(0x22) * _ONES
_BACKSLASHES = np.uint64(0x5C) * _ONES
_BLANKS = np.uint64(0x20) * _ONES
_THREE = np.uint64(3)

_MAX_DEPTH = 60
_MAX_DIGITS = 100
_MAX_ID_DIGITS = 18


@non_allocating
def skip_blanks(data: Any, i: int) -> int:
    """Behind white space, of which the end of a line is none here."""
    while i < len(data) and (data[i] == BLANK or data[i] == TAB or data[i] == RETURN):
        i += 1
    return i


@non_allocating
def plain_string(data: Any, i: int) -> int:
    """Behind the quote that ends a string without escapes; -1 if it has any, or does not end."""
    while i < len(data):
        byte = data[i]
        if byte == QUOTE:
            return i + 1
        if byte == _BACKSLASH or byte < BLANK:
            return -1
        i += 1
    return -1


@non_allocating
def string(data: Any, i: Any, out: Any, at: Any, keep: bool) -> Any:
    """Unescape the string from `i` on to `out[at:]` if `keep`: (place behind its quote or -1, end in `out`)."""
    while i < len(data):
        if i + 8 <= len(data):
            group = load64(data, i)
            quote, slash = group ^ _QUOTES, group ^ _BACKSLASHES
            # A byte is zero, or below 32: the lowest flag is right, which is the one that counts.
            flags = ((quote - _ONES) & ~quote | (slash - _ONES) & ~slash | (group - _BLANKS) & ~group) & TOP_BITS
            if keep:
                store64(out, at, group)
            plain = np.int64(trailing_zeros(flags) >> _THREE)
            i += plain
            at += plain
            if plain == 8:
                continue
        byte = data[i]
        if byte == QUOTE:
            return i + 1, at
        if byte < BLANK:
            return -1, at
        if byte != _BACKSLASH:
            if keep:
                out[at] = byte
            i += 1
            at += 1
            continue
        i, point = _escape(data, i + 1)
        if i < 0:
            return -1, at
        if keep:
            at = _put_character(out, at, point)
    return -1, at


@non_allocating
def _escape(data: Any, i: int) -> Any:
    """What stands behind a backslash: (place behind it or -1, code point)."""
    if i >= len(data):
        return -1, 0
    byte = np.int64(data[i])
    if byte == ord("n"):
        return i + 1, 10
    if byte in (QUOTE, _BACKSLASH, _SLASH):
        return i + 1, byte
    if byte == ord("t"):
        return i + 1, 9
    if byte == ord("r"):
        return i + 1, 13
    if byte == ord("b"):
        return i + 1, 8
    if byte == ord("f"):
        return i + 1, 12
    if byte != ord("u"):
        return -1, 0
    point = _four_digits(data, i + 1)
    if point < 0 or 0xDC00 <= point < 0xE000:
        return -1, 0
    if point < 0xD800 or point >= 0xE000:
        return i + 5, point
    if i + 7 > len(data) or data[i + 5] != _BACKSLASH or data[i + 6] != ord("u"):
        return -1, 0
    low = _four_digits(data, i + 7)
    if not 0xDC00 <= low < 0xE000:
        return -1, 0
    return i + 11, 0x10000 + ((point - 0xD800) << 10 | low - 0xDC00)


@non_allocating
def _four_digits(data: Any, i: int) -> Any:
    """The value of four hexadecimal digits; -1 if they are not."""
    value = np.int64(0)
    if i + 4 > len(data):
        return -1
    for k in range(4):
        byte = np.int64(data[i + k])
        if _ZERO <= byte <= _NINE:
            digit = byte - _ZERO
        elif 97 <= (byte | 32) <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        value = value << 4 | digit
    return value


@non_allocating
def _put_character(out: Any, at: int, point: int) -> int:
    """Write a code point as UTF-8; the end of it."""
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at], out[at + 1] = 0xC0 | point >> 6, 0x80 | point & 63
        return at + 2
    if point < 0x10000:
        out[at], out[at + 1], out[at + 2] = 0xE0 | point >> 12, 0x80 | point >> 6 & 63, 0x80 | point & 63
        return at + 3
    out[at], out[at + 1] = 0xF0 | point >> 18, 0x80 | point >> 12 & 63
    out[at + 2], out[at + 3] = 0x80 | point >> 6 & 63, 0x80 | point & 63
    return at + 4


@non_allocating
def integer(data: Any, i: int, out: Any, at: int) -> Any:
    """Copy a whole number's digits: (place behind it or -1, end in `out`)."""
    end = _number(data, i)
    if end < 0 or end - i > _MAX_ID_DIGITS or (data[i] == _MINUS and data[i + 1] == _ZERO):
        return -1, at
    for k in range(i, end):
        if not (data[k] == _MINUS or _ZERO <= data[k] <= _NINE):
            return -1, at
        out[at] = data[k]
        at += 1
    return end, at


@non_allocating
def _number(data: Any, i: int) -> int:
    """Behind a number; -1 if it is none, or so long that it may be infinite."""
    if data[i] == _MINUS:
        i += 1
    begin = i
    i = _digits(data, i)
    if i == begin or i - begin > _MAX_DIGITS or (data[begin] == _ZERO and i - begin > 1):
        return -1
    if i < len(data) and data[i] == _POINT:
        begin = i + 1
        i = _digits(data, begin)
        if i == begin:
            return -1
    if i < len(data) and (data[i] | 32) == ord("e"):
        i += 1
        if i < len(data) and (data[i] == _MINUS or data[i] == ord("+")):
            i += 1
        begin = i
        i = _digits(data, i)
        if not 1 <= i - begin <= 2:
            return -1
    return i


@non_allocating
def _digits(data: Any, i: int) -> int:
    while i < len(data) and _ZERO <= data[i] <= _NINE:
        i += 1
    return i


@non_allocating
def skip_value(data: Any, i: int, scratch: Any) -> int:
    """Behind any value; -1 if it is not JSON, or nested very deep. Bits of `kinds` tell objects from lists."""
    depth, kinds = 0, np.uint64(0)
    one = np.uint64(1)
    while i < len(data):
        byte = data[i]
        opened = False
        if byte == QUOTE:
            i, _ = string(data, i + 1, scratch, 0, False)
        elif byte in (OPEN_OBJECT, _OPEN_LIST):
            if depth == _MAX_DEPTH:
                return -1
            depth += 1
            kinds = kinds << one | np.uint64(byte == OPEN_OBJECT)
            i = skip_blanks(data, i + 1)
            opened = i < len(data) and data[i] != CLOSE_OBJECT and data[i] != _CLOSE_LIST
            if opened and kinds & one:
                i = _skip_key(data, i, scratch)
        elif byte == _MINUS or _ZERO <= byte <= _NINE:
            i = _number(data, i)
        else:
            i = _literal(data, i)
        if i < 0:
            return -1
        if opened:
            continue
        while depth:  # a value is done: what does it end?
            i = skip_blanks(data, i)
            if i >= len(data):
                return -1
            if data[i] == COMMA:
                i = skip_blanks(data, i + 1)
                if kinds & one:
                    i = _skip_key(data, i, scratch)
                if i < 0:
                    return -1
                break
            if data[i] != (CLOSE_OBJECT if kinds & one else _CLOSE_LIST):
                return -1
            i += 1
            depth -= 1
            kinds >>= one
        else:
            return i
    return -1


@non_allocating
def _skip_key(data: Any, i: int, scratch: Any) -> int:
    """Behind a key, its colon and the blanks around it; -1 if that is not there."""
    if i >= len(data) or data[i] != QUOTE:
        return -1
    i, _ = string(data, i + 1, scratch, 0, False)
    if i < 0:
        return -1
    i = skip_blanks(data, i)
    if i >= len(data) or data[i] != COLON:
        return -1
    return skip_blanks(data, i + 1)


@non_allocating
def _literal(data: Any, i: int) -> int:
    """Behind `true`, `false` or `null`; -1 if it is none of them."""
    if i + 4 <= len(data) and data[i + 1] == ord("r") and data[i + 2] == ord("u") and data[i + 3] == ord("e"):
        return i + 4 if data[i] == ord("t") else -1
    if i + 4 <= len(data) and data[i + 1] == ord("u") and data[i + 2] == ord("l") and data[i + 3] == ord("l"):
        return i + 4 if data[i] == ord("n") else -1
    if i + 5 <= len(data) and data[i] == ord("f") and data[i + 1] == ord("a") and data[i + 2] == ord("l"):
        return i + 5 if data[i + 3] == ord("s") and data[i + 4] == ord("e") else -1
    return -1
