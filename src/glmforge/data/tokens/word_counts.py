"""Which words a corpus has and how often: all that a BPE trainer reads of it.

A word is a piece of the split rule. They are counted in a hash table of our own over the bytes of the text, about as
fast as text can be scanned and without a Python object per word. What the table may hold is bounded: when the
distinct words outgrow `max_bytes`, the rarest are dropped, first those seen once, next time those seen twice, and so
on (lossy counting, Manku and Motwani 2002, by bytes). When that happens depends on the sequence of words only, so
the counts do not depend on how the corpus was cut into batches.

Spellings of special tokens are no words: text around them is counted as if they ended it, because a token learnt
with such a spelling would take the special token's place.
"""

# mypy: disable-error-code="no-untyped-def"
# Compiled functions have no annotations: numba infers types, and numpy's describe scalars otherwise than it.

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import copy_bytes, equal_bytes, hash_bytes
from glmforge.data.compiled import non_allocating, readonly
from glmforge.data.tokens.characters import character_classes
from glmforge.data.tokens.split import piece_end

MAX_WORD_BYTES = 96 << 20
"""Distinct words kept, in bytes: some hundred megabytes of multilingual text have as many. Learning from them takes
about thirty times that memory in the worst case, half of it in ordinary text."""

_FIRST_SLOTS = 1 << 16
_FIRST_BYTES = 1 << 20


@dataclass(frozen=True)
class Words:
    """Distinct words with their counts.

    Attributes:
        data: uint8, their bytes end to end.
        offsets: int64 `[n + 1]`, word i is `data[offsets[i]:offsets[i + 1]]`.
        counts: int64 `[n]`.
        num_dropped: words that were dropped for want of room; one may be counted more than once.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    num_dropped: int = 0

    def __len__(self) -> int:
        return len(self.counts)

    def words(self) -> dict[bytes, int]:
        """As a mapping, for people and tests."""
        data, offsets = self.data.tobytes(), self.offsets.tolist()
        parts = (data[first:last] for first, last in pairwise(offsets))
        return dict(zip(parts, self.counts.tolist(), strict=True))


class WordCounter:
    """Counts the words of texts that are added to it.

    Args:
        apart: spellings that are no words, see above; each begins with `<`, `[` or `/`.
        max_bytes: bound on the bytes of all distinct words together.
    """

    def __init__(self, apart: Sequence[str] = (), max_bytes: int = MAX_WORD_BYTES) -> None:
        spellings = [text.encode() for text in apart]
        assert all(spelling[:1] in (b"<", b"[", b"/") for spelling in spellings), "others are not looked for"
        self._apart = np.frombuffer(b"".join(spellings), np.uint8)
        self._apart_offsets = np.cumsum([0, *map(len, spellings)], dtype=np.int64)
        self._max_bytes = max_bytes
        self._dropped_below = 1
        self._num_dropped = 0
        self._table = np.full(_FIRST_SLOTS, -1, np.int32)
        self._data = np.empty(_FIRST_BYTES, np.uint8)
        self._offsets = np.zeros(_FIRST_SLOTS // 2 + 1, np.int64)
        self._counts = np.zeros(_FIRST_SLOTS // 2, np.int64)
        self._hashes = np.zeros(_FIRST_SLOTS // 2, np.uint64)
        self._size = 0

    def add(self, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """Count texts given as UTF-8 end to end, text i in `[offsets[i], offsets[i + 1])`."""
        classes, text, offsets = character_classes(), readonly(text), readonly(offsets)
        document, place = 0, int(offsets[0])
        while document < len(offsets) - 1:
            document, place, self._size = _count(
                text, offsets, document, place, classes, self._apart, self._apart_offsets,
                self._table, self._data, self._offsets, self._counts, self._hashes, self._size, self._max_bytes,
            )  # fmt: skip
            if document < len(offsets) - 1:
                self._make_room(int(offsets[document + 1]) - place)

    def add_texts(self, texts: Sequence[str]) -> None:
        """Count Python strings."""
        encoded = [text.encode() for text in texts]
        self.add(np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)], dtype=np.int64))

    def finish(self) -> Words:
        """What was counted, in the order of first appearance."""
        offsets = self._offsets[: self._size + 1]
        return Words(self._data[: offsets[-1]], offsets, self._counts[: self._size], self._num_dropped)

    def _make_room(self, num_bytes: int) -> None:
        """For a word of `num_bytes` at most: drop rare words, or make the arrays larger."""
        used = int(self._offsets[self._size])
        if used >= self._max_bytes:
            self._drop_rare()
            used = int(self._offsets[self._size])
        if 2 * self._size >= len(self._counts):
            self._counts = _longer(self._counts, 4 * self._size + _FIRST_SLOTS)
            self._hashes = _longer(self._hashes, len(self._counts))
            self._offsets = _longer(self._offsets, len(self._counts) + 1)
        if len(self._data) < 2 * used + num_bytes:
            self._data = _longer(self._data, 2 * used + num_bytes)
        slots = 1 << (2 * len(self._counts) - 1).bit_length()
        if slots > len(self._table):
            self._table = np.full(slots, -1, np.int32)
            _fill_table(self._table, self._hashes, self._size)

    def _drop_rare(self) -> None:
        while self._offsets[self._size] > self._max_bytes // 2:
            self._dropped_below += 1
            before = self._size
            self._size = _keep_frequent(
                self._data, self._offsets, self._counts, self._hashes, self._size, self._dropped_below
            )
            self._num_dropped += before - self._size
        self._table.fill(-1)
        _fill_table(self._table, self._hashes, self._size)


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    longer = np.zeros(length, array.dtype)
    longer[: len(array)] = array
    return longer


@non_allocating
def _count(
    text, offsets, document, place, classes, apart, apart_offsets,
    table, data, word_offsets, counts, hashes, size, max_bytes,
):  # fmt: skip
    """Count from `place` of `document` on. Returns (document, place, number of words), early if there is no room."""
    mask = np.uint64(len(table) - 1)
    while document < len(offsets) - 1:
        end = offsets[document + 1]
        while place < end:
            stop, after = _next_apart(text, place, end, apart, apart_offsets)
            while place < stop:
                piece = piece_end(text, place, stop, classes)
                used = word_offsets[size]
                if size == len(counts) or used + piece - place > len(data) or used >= max_bytes:
                    return document, place, size
                size += _count_word(text, place, piece, table, mask, data, word_offsets, counts, hashes, size)
                place = piece
            place = after
        document += 1
        if document < len(offsets) - 1:
            place = offsets[document]
    return document, place, size


@non_allocating
def _count_word(text, start, stop, table, mask, data, word_offsets, counts, hashes, size):
    """Count one word; 1 if it is new, else 0."""
    value = hash_bytes(text, start, stop)
    slot = value & mask
    while table[slot] >= 0:
        word = table[slot]
        if hashes[word] == value:
            first, length = word_offsets[word], word_offsets[word + 1] - word_offsets[word]
            if length == stop - start and equal_bytes(text, start, data, first, length):
                counts[word] += 1
                return 0
        slot = (slot + np.uint64(1)) & mask
    word_offsets[size + 1] = copy_bytes(text, start, stop, data, word_offsets[size])
    table[slot], hashes[size], counts[size] = size, value, 1
    return 1


@non_allocating
def _next_apart(text, start, stop, apart, apart_offsets):
    """(start, end) of the first spelling in `apart`, (stop, stop) if there is none."""
    for place in range(start, stop):
        first = text[place]
        if first == 0x3C or first == 0x5B or first == 0x2F:  # < [ /
            for number in range(len(apart_offsets) - 1):
                length = apart_offsets[number + 1] - apart_offsets[number]
                if place + length <= stop and equal_bytes(text, place, apart, apart_offsets[number], length):
                    return place, place + length
    return stop, stop


@non_allocating
def _fill_table(table, hashes, size):
    mask = np.uint64(len(table) - 1)
    for word in range(size):
        slot = hashes[word] & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = word


@non_allocating
def _keep_frequent(data, offsets, counts, hashes, size, least):
    """Drop words with fewer than `least` counts; returns how many are left."""
    kept = used = 0
    for word in range(size):
        if counts[word] < least:
            continue
        end = copy_bytes(data, offsets[word], offsets[word + 1], data, used)
        counts[kept], hashes[kept], offsets[kept] = counts[word], hashes[word], used
        kept, used = kept + 1, end
    offsets[kept] = used
    return kept
