"""Loops that count lines, and what stands more than once: lines, paragraphs, n-grams of words.

An n-gram can stand twice only if its first n - 1 words do, so the n-grams of each length are looked up at those
places only at which the shorter ones repeat. In ordinary text that is everything for pairs, a third for triples and
next to nothing from five words on: nine lengths cost little more than one.

All use one hash set over scratch memory, filled per document. Keys are hashes already, so their low bits choose the
slot; 0 is an empty slot, and a key 0 is stored as 1.
"""

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import character_at, hash_bytes, mixed
from glmforge.data.compiled import compiled, non_allocating
from glmforge_corpus.words.characters import BREAK, CLASS, TERMINAL


@compiled(inline="always")
def table_size(num_keys: int) -> int:
    """Slots for this many keys: a power of two, at most half full."""
    size = 16
    while size < 2 * num_keys:
        size *= 2
    return size


@compiled(inline="always")
def find_slot(keys: Any, size: int, key: np.uint64) -> Any:
    """The slot where `key` is or belongs, in the first `size` slots of `keys`."""
    mask = np.uint64(size - 1)
    slot = key & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@compiled(inline="always")
def insert(keys: Any, size: int, key: np.uint64) -> Any:
    """Put `key` into the table; false if it was there."""
    key = max(key, np.uint64(1))
    slot = find_slot(keys, size, key)
    is_new = keys[slot] == 0
    keys[slot] = key
    return is_new


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


@compiled
def _count(hashes: Any, active: Any, num: int, keys: Any, counts: Any, slots: Any) -> None:
    """Count the n-grams at the active places: `counts[slots[a]]` is how often that of place a stands there."""
    size = table_size(num)
    keys[:size] = 0
    counts[:size] = 0
    for a in range(num):
        key = max(hashes[np.uintp(active[np.uintp(a)])], np.uint64(1))
        slot = find_slot(keys, size, key)
        keys[slot] = key
        counts[slot] += 1
        slots[a] = slot


@compiled
def _top(active: Any, num: int, counts: Any, slots: Any, lengths: Any, n: int) -> Any:
    """Characters of the commonest n-gram, with its blanks, times how often it stands there; the first of equals."""
    best, place = 1, 0
    for a in range(num):
        if counts[slots[a]] > best:
            best, place = counts[slots[a]], active[a]
    return best * (lengths[place : place + n].sum() + n - 1)


@compiled
def _repeated(active: Any, num: int, counts: Any, slots: Any, lengths: Any, n: int) -> int:
    """Characters of n-grams that have stood before; one that has is stepped over, one that has not is remembered."""
    total, free = 0, 0
    for a in range(num):
        slot, place = slots[a], active[a]
        if (counts[slot] < 2 and counts[slot] >= 0) or place < free:
            continue
        if counts[slot] < 0:
            total += lengths[place : place + n].sum()
            free = place + n
        else:
            counts[slot] = -counts[slot]  # seen
    return total


@compiled
def count_repetition(borders: Any, hashes: Any, lengths: Any, rows: Any, is_top: Any, is_repeated: Any) -> Any:
    """`[rows, longest + 1]` int64: what the rule for n-grams of each length counts, of texts `rows`.

    Args:
        borders, hashes, lengths: words, as `Words` has them.
        is_top: `[longest + 1]` bool: for n-grams of these lengths, count the commonest one's characters.
        is_repeated: likewise, count the characters of repeated ones. No length is both.
    """
    longest = len(is_top) - 1
    shortest = 1
    while shortest < longest and not is_top[shortest] and not is_repeated[shortest]:
        shortest += 1
    most = 0
    for text in rows:
        most = max(most, borders[text + 1] - borders[text])
    sums, active, slots = np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.int64)
    keys, counts = np.empty(table_size(most), np.uint64), np.empty(table_size(most), np.int32)
    out = np.zeros((len(rows), longest + 1), np.int64)
    for index in range(len(rows)):
        first, stop = borders[rows[index]], borders[rows[index] + 1]
        words, sizes = hashes[first:stop], lengths[first:stop]
        num_words = stop - first
        num = num_words
        for place in range(num_words):
            active[place] = place
            sums[place] = np.uint64(0)
        for n in range(1, longest + 1):
            kept = 0
            for a in range(num):
                place = active[a]
                if place + n <= num_words:
                    sums[np.uintp(place)] = mixed(sums[np.uintp(place)] * _PRIME + words[np.uintp(place + n - 1)])
                    active[np.uintp(kept)] = place
                    kept += 1
            num = kept
            if is_top[n] and num == 0 and num_words >= n:
                out[index, n] = sizes[:n].sum() + n - 1
            if num == 0 or n < shortest:
                continue
            _count(sums, active, num, keys, counts, slots)
            if is_top[n]:
                out[index, n] = _top(active, num, counts, slots, sizes, n)
            elif is_repeated[n]:
                out[index, n] = _repeated(active, num, counts, slots, sizes, n)
            kept = 0
            for a in range(num):
                active[kept] = active[a]
                kept += abs(counts[slots[a]]) > 1
            num = kept
    return out
