"""Loops over the lines of texts: what lines there are, and how many lines and paragraphs stand twice."""

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import character_at, hash_bytes, mixed
from glmforge.data.compiled import compiled, non_allocating
from glmforge_corpus.filter.rules.tables import insert, table_size
from glmforge_corpus.words.characters import BREAK, CLASS, TERMINAL

BLANK, ENDS_SENTENCE = 1, 2
"""Marks of a line: it has nothing but white space; its last character ends sentences."""

(NUM_LINES, DUPLICATE_LINES, DUPLICATE_LINE_CHARACTERS) = range(3)
(NUM_PARAGRAPHS, DUPLICATE_PARAGRAPHS, DUPLICATE_PARAGRAPH_CHARACTERS) = range(3, 6)
(FULL_LINES, SHORT_LINES, ENDED_LINES, DUPLICATE_FULL_CHARACTERS) = range(6, 10)
NUM_LINE_COUNTS = 10
"""Columns of the counts of lines per document; full lines are those that are not blank."""

_NEWLINE = 0x0A
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@non_allocating
def _skip_spaces(text: Any, position: int, stop: int, table: Any) -> int:
    while position < stop:
        code, size = character_at(text, position, stop)
        kind = np.int64(table[code]) & CLASS
        if kind > BREAK or code == 0xF0B or code == 0xF0C:
            break
        position += size
    return position


@non_allocating
def last_character(text: Any, start: int, stop: int) -> int:
    """Where the last character before `stop` begins."""
    position = stop - 1
    while position > start and text[position] & 0xC0 == 0x80:
        position -= 1
    return position


@non_allocating
def stripped(text: Any, start: Any, stop: Any, table: Any) -> Any:
    """`str.strip`: the borders without white space at both ends."""
    start = _skip_spaces(text, start, stop, table)
    while stop > start:
        last = last_character(text, start, stop)
        if _skip_spaces(text, last, stop, table) == last:
            break
        stop = last
    return start, stop


@non_allocating
def num_characters(text: Any, start: int, stop: int) -> Any:
    """Code points of a stretch of UTF-8."""
    count = 0
    for position in range(start, stop):
        count += text[np.uintp(position)] & 0xC0 != 0x80
    return count


@non_allocating
def _find_lines(
    text: Any, start: int, stop: int, borders: Any, hashes: Any, lengths: Any, marks: Any, table: Any
) -> int:
    """Cut a text at line feeds; the number of lines, or -1 if the arrays are too short."""
    line, line_start = 0, start
    for position in range(start, stop + 1):
        if position < stop and text[np.uintp(position)] != _NEWLINE:
            continue
        if line + 1 >= len(borders):
            return -1
        borders[line] = line_start
        lengths[line] = num_characters(text, line_start, position)
        hashes[line] = hash_bytes(text, line_start, position)
        marks[line] = 0
        if _skip_spaces(text, line_start, position, table) == position:
            marks[line] = BLANK
        elif table[character_at(text, last_character(text, line_start, position), position)[0]] & TERMINAL:
            marks[line] = ENDS_SENTENCE
        line += 1
        line_start = position + 1
    borders[line] = stop + 1
    return line


@non_allocating
def _count_full_lines(hashes: Any, lengths: Any, marks: Any, num: int, short: int, keys: Any, row: Any) -> None:
    size = table_size(num)
    keys[:size] = 0
    for line in range(num):
        if marks[line] & BLANK:
            continue
        row[FULL_LINES] += 1
        row[SHORT_LINES] += lengths[line] <= short
        row[ENDED_LINES] += marks[line] & ENDS_SENTENCE > 0
        if not insert(keys, size, hashes[line]):
            row[DUPLICATE_FULL_CHARACTERS] += lengths[line]


@non_allocating
def _count_lines(borders: Any, hashes: Any, lengths: Any, num: int, keys: Any, row: Any) -> None:
    """Lines as what stands between runs of line feeds; a run at an end of the text leaves an empty line there."""
    size = table_size(num)
    keys[:size] = 0
    for line in range(num):
        is_empty = borders[line + 1] - borders[line] == 1
        if is_empty and 0 < line < num - 1:
            continue
        row[NUM_LINES] += 1
        if not insert(keys, size, hashes[line]):
            row[DUPLICATE_LINES] += 1
            row[DUPLICATE_LINE_CHARACTERS] += lengths[line]


@non_allocating
def _count_paragraphs(
    text: Any, start: int, stop: int, borders: Any, hashes: Any, lengths: Any, num: int, keys: Any, row: Any
) -> None:
    """Paragraphs of `text[start:stop]` (which is stripped), separated by two and more line feeds."""
    size = table_size(num)
    keys[:size] = 0
    value, length, lines = np.uint64(0), np.int64(0), 0
    for line in range(num + 1):
        is_end = line == num or borders[line] > stop
        first, last = (0, 0) if is_end else (max(borders[line], start), min(borders[line + 1] - 1, stop))
        if is_end or first >= last:
            if lines:
                row[NUM_PARAGRAPHS] += 1
                if not insert(keys, size, value):
                    row[DUPLICATE_PARAGRAPHS] += 1
                    row[DUPLICATE_PARAGRAPH_CHARACTERS] += length + lines - 1
            value, length, lines = np.uint64(0), np.int64(0), 0
            if is_end:
                break
            continue
        if first == borders[line] and last == borders[line + 1] - 1:
            line_hash, characters = hashes[line], np.int64(lengths[line])
        else:
            line_hash, characters = hash_bytes(text, first, last), num_characters(text, first, last)
        value = mixed(value * _PRIME + line_hash)
        length += characters
        lines += 1


@compiled
def count_lines(text: Any, offsets: Any, short_line: int, table: Any) -> Any:
    """`[n, NUM_LINE_COUNTS]` int64 of n texts; a line of at most `short_line` characters is short."""
    num_texts = len(offsets) - 1
    counts = np.zeros((num_texts, NUM_LINE_COUNTS), np.int64)
    capacity = 1024
    borders, hashes = np.empty(capacity + 1, np.int64), np.empty(capacity, np.uint64)
    lengths, marks = np.empty(capacity, np.int32), np.empty(capacity, np.uint8)
    keys = np.empty(table_size(capacity), np.uint64)
    for document in range(num_texts):
        start, stop = offsets[document], offsets[document + 1]
        num = _find_lines(text, start, stop, borders, hashes, lengths, marks, table)
        if num < 0:
            capacity = 2
            for position in range(start, stop):
                capacity += text[position] == _NEWLINE
            borders, hashes = np.empty(capacity + 1, np.int64), np.empty(capacity, np.uint64)
            lengths, marks = np.empty(capacity, np.int32), np.empty(capacity, np.uint8)
            keys = np.empty(table_size(capacity), np.uint64)
            num = _find_lines(text, start, stop, borders, hashes, lengths, marks, table)
        row = counts[document]
        _count_full_lines(hashes, lengths, marks, num, short_line, keys, row)
        _count_lines(borders, hashes, lengths, num, keys, row)
        first, last = stripped(text, start, stop, table)
        _count_paragraphs(text, first, last, borders, hashes, lengths, num, keys, row)
    return counts
