"""JSON lines to columns in one pass over the bytes: two fields of each record, unescaped, side by side.

What is taken is checked whole: a line gives a row only if it is one JSON object (RFC 8259) that holds the text, and the
id if there is one to look for; of a field that comes twice the last counts. Everything out of the ordinary (damage, a
lone surrogate, a number that may be too large, an empty text, a key with an escape) stops the pass before its line, and
a complete JSON parser decides. A string is looked at eight bytes at a time for a quote, a backslash or a control
character, and copied on the way; the bytes must be UTF-8, of which nothing is checked here.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

from typing import Any

import numpy as np

from glmforge.data.compiled import non_allocating
from glmforge.data.corpus.words.bytes_kernels import TOP_BITS, equal_bytes, load64, store64, trailing_zeros

_ONES = np.uint64(0x0101010101010101)
_QUOTES = np.uint64(0x22) * _ONES
_BACKSLASHES = np.uint64(0x5C) * _ONES
_BLANKS = np.uint64(0x20) * _ONES
_THREE = np.uint64(3)

_TAB, _NEWLINE, _RETURN, _BLANK = 9, 10, 13, 32
_QUOTE, _COMMA, _MINUS, _POINT, _SLASH, _ZERO, _NINE, _COLON = 34, 44, 45, 46, 47, 48, 57, 58
_OPEN_LIST, _BACKSLASH, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = 91, 92, 93, 123, 125

_MAX_DEPTH = 60
_MAX_DIGITS = 100
_MAX_ID_DIGITS = 18


@non_allocating
def parse_lines(
    data: Any,
    start: int,
    text_key: Any,
    id_key: Any,
    max_text_bytes: int,
    texts: Any,
    text_offsets: Any,
    ids: Any,
    id_offsets: Any,
    lines: Any,
) -> Any:
    """Read lines from `start` on, up to the first that is out of the ordinary.

    Args:
        data: whole lines, UTF-8.
        text_key, id_key: names of the fields; an empty `id_key` looks for none.
        max_text_bytes: a longer text is out of the ordinary.
        texts, ids: are written; `len(data) - start` bytes are room enough: no escape is shorter than what it means.
        text_offsets, id_offsets: borders of the rows in them, from 0; a row more than there are lines.
        lines: the line of each row, counted from `start`.

    Returns:
        (place of the line that was not taken, or the end; number of lines before it; number of rows).
    """
    i, line, row = start, 0, 0
    text_offsets[0] = id_offsets[0] = 0
    while i < len(data):
        begin = _skip_blanks(data, i)
        if begin < len(data) and data[begin] != _NEWLINE:
            text_at, id_at = text_offsets[row], np.int64(id_offsets[row])
            end, text_end, id_end = _record(data, begin, text_key, id_key, texts, text_at, ids, id_at)
            if end < 0 or text_end - text_at > max_text_bytes:
                break
            lines[row] = line
            row += 1
            text_offsets[row], id_offsets[row] = text_end, id_end
            begin = end
        i = begin + 1
        line += 1
    return min(i, len(data)), line, row


@non_allocating
def _record(data: Any, i: int, text_key: Any, id_key: Any, texts: Any, text_at: int, ids: Any, id_at: int) -> Any:
    """One line's object: (place of its newline, end of its text, end of its id), -1 if it is not to be taken."""
    text_end, id_end, wants_id = -1, id_at, len(id_key) > 0
    if data[i] != _OPEN_OBJECT:
        return -1, -1, -1
    i = _skip_blanks(data, i + 1)
    while True:
        if i >= len(data) or data[i] != _QUOTE:
            return -1, -1, -1
        begin = i + 1
        i = _plain_string(data, begin)
        if i < 0:
            return -1, -1, -1
        end = i - 1
        i = _skip_blanks(data, i)
        if i >= len(data) or data[i] != _COLON:
            return -1, -1, -1
        i = _skip_blanks(data, i + 1)
        if i >= len(data):
            return -1, -1, -1
        if end - begin == len(text_key) and equal_bytes(data, begin, text_key, 0, end - begin):
            if data[i] != _QUOTE:
                return -1, -1, -1
            i, text_end = _string(data, i + 1, texts, text_at, True)
        elif wants_id and end - begin == len(id_key) and equal_bytes(data, begin, id_key, 0, end - begin):
            if data[i] == _QUOTE:
                i, id_end = _string(data, i + 1, ids, id_at, True)
            else:
                i, id_end = _integer(data, i, ids, id_at)
        else:
            i = _skip_value(data, i, texts)
        if i < 0:
            return -1, -1, -1
        i = _skip_blanks(data, i)
        if i >= len(data) or data[i] != _COMMA:
            break
        i = _skip_blanks(data, i + 1)
    if i >= len(data) or data[i] != _CLOSE_OBJECT:
        return -1, -1, -1
    i = _skip_blanks(data, i + 1)
    if i < len(data) and data[i] != _NEWLINE:
        return -1, -1, -1
    if text_end < 0 or _is_blank(texts, text_at, text_end) or (wants_id and id_end == id_at):
        return -1, -1, -1
    return i, text_end, id_end


@non_allocating
def _is_blank(text: Any, begin: int, end: int) -> bool:
    while begin < end and (text[begin] == _BLANK or _TAB <= text[begin] <= _RETURN):
        begin += 1
    return begin == end


@non_allocating
def _skip_blanks(data: Any, i: int) -> int:
    while i < len(data) and (data[i] == _BLANK or data[i] == _TAB or data[i] == _RETURN):
        i += 1
    return i


@non_allocating
def _plain_string(data: Any, i: int) -> int:
    """Behind the quote that ends a string without escapes; -1 if it has any, or does not end."""
    while i < len(data):
        byte = data[i]
        if byte == _QUOTE:
            return i + 1
        if byte == _BACKSLASH or byte < _BLANK:
            return -1
        i += 1
    return -1


@non_allocating
def _string(data: Any, i: Any, out: Any, at: Any, keep: bool) -> Any:
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
        if byte == _QUOTE:
            return i + 1, at
        if byte < _BLANK:
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
    if byte in (_QUOTE, _BACKSLASH, _SLASH):
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
def _integer(data: Any, i: int, out: Any, at: int) -> Any:
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
def _skip_value(data: Any, i: int, scratch: Any) -> int:
    """Behind any value; -1 if it is not JSON, or nested very deep. Bits of `kinds` tell objects from lists."""
    depth, kinds = 0, np.uint64(0)
    one = np.uint64(1)
    while i < len(data):
        byte = data[i]
        opened = False
        if byte == _QUOTE:
            i, _ = _string(data, i + 1, scratch, 0, False)
        elif byte in (_OPEN_OBJECT, _OPEN_LIST):
            if depth == _MAX_DEPTH:
                return -1
            depth += 1
            kinds = kinds << one | np.uint64(byte == _OPEN_OBJECT)
            i = _skip_blanks(data, i + 1)
            opened = i < len(data) and data[i] != _CLOSE_OBJECT and data[i] != _CLOSE_LIST
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
            i = _skip_blanks(data, i)
            if i >= len(data):
                return -1
            if data[i] == _COMMA:
                i = _skip_blanks(data, i + 1)
                if kinds & one:
                    i = _skip_key(data, i, scratch)
                if i < 0:
                    return -1
                break
            if data[i] != (_CLOSE_OBJECT if kinds & one else _CLOSE_LIST):
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
    if i >= len(data) or data[i] != _QUOTE:
        return -1
    i, _ = _string(data, i + 1, scratch, 0, False)
    if i < 0:
        return -1
    i = _skip_blanks(data, i)
    if i >= len(data) or data[i] != _COLON:
        return -1
    return _skip_blanks(data, i + 1)


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
def _literal(data: Any, i: int) -> int:
    """Behind `true`, `false` or `null`; -1 if it is none of them."""
    if i + 4 <= len(data) and data[i + 1] == ord("r") and data[i + 2] == ord("u") and data[i + 3] == ord("e"):
        return i + 4 if data[i] == ord("t") else -1
    if i + 4 <= len(data) and data[i + 1] == ord("u") and data[i + 2] == ord("l") and data[i + 3] == ord("l"):
        return i + 4 if data[i] == ord("n") else -1
    if i + 5 <= len(data) and data[i] == ord("f") and data[i + 1] == ord("a") and data[i + 2] == ord("l"):
        return i + 5 if data[i + 3] == ord("s") and data[i + 4] == ord("e") else -1
    return -1


@non_allocating
def count_newlines(data: Any) -> int:
    count = 0
    for byte in data:
        count += byte == _NEWLINE
    return count
