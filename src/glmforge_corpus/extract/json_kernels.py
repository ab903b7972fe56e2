"""JSON lines to columns in one pass over the bytes: two fields of each record, unescaped, side by side.

What is taken is checked whole: a line gives a row only if it is one JSON object (RFC 8259) that holds the text, and the
id if there is one to look for; of a field that comes twice the last counts. Everything out of the ordinary (damage, a
lone surrogate, a number that may be too large, an empty text, a key with an escape) stops the pass before its line, and
a complete JSON parser decides. The bytes must be UTF-8, of which nothing is checked here.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import equal_bytes
from glmforge.data.compiled import non_allocating
from glmforge_corpus.extract.json_values import (
    BLANK,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    NEWLINE,
    OPEN_OBJECT,
    QUOTE,
    RETURN,
    TAB,
    integer,
    plain_string,
    skip_blanks,
    skip_value,
    string,
)


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
        begin = skip_blanks(data, i)
        if begin < len(data) and data[begin] != NEWLINE:
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
    if data[i] != OPEN_OBJECT:
        return -1, -1, -1
    i = skip_blanks(data, i + 1)
    while True:
        if i >= len(data) or data[i] != QUOTE:
            return -1, -1, -1
        begin = i + 1
        i = plain_string(data, begin)
        if i < 0:
            return -1, -1, -1
        end = i - 1
        i = skip_blanks(data, i)
        if i >= len(data) or data[i] != COLON:
            return -1, -1, -1
        i = skip_blanks(data, i + 1)
        if i >= len(data):
            return -1, -1, -1
        if end - begin == len(text_key) and equal_bytes(data, begin, text_key, 0, end - begin):
            if data[i] != QUOTE:
                return -1, -1, -1
            i, text_end = string(data, i + 1, texts, text_at, True)
        elif wants_id and end - begin == len(id_key) and equal_bytes(data, begin, id_key, 0, end - begin):
            if data[i] == QUOTE:
                i, id_end = string(data, i + 1, ids, id_at, True)
            else:
                i, id_end = integer(data, i, ids, id_at)
        else:
            i = skip_value(data, i, texts)
        if i < 0:
            return -1, -1, -1
        i = skip_blanks(data, i)
        if i >= len(data) or data[i] != COMMA:
            break
        i = skip_blanks(data, i + 1)
    if i >= len(data) or data[i] != CLOSE_OBJECT:
        return -1, -1, -1
    i = skip_blanks(data, i + 1)
    if i < len(data) and data[i] != NEWLINE:
        return -1, -1, -1
    if text_end < 0 or _is_blank(texts, text_at, text_end) or (wants_id and id_end == id_at):
        return -1, -1, -1
    return i, text_end, id_end


@non_allocating
def _is_blank(text: Any, begin: int, end: int) -> bool:
    while begin < end and (text[begin] == BLANK or TAB <= text[begin] <= RETURN):
        begin += 1
    return begin == end


@non_allocating
def count_newlines(data: Any) -> int:
    count = 0
    for byte in data:
        count += byte == NEWLINE
    return count
