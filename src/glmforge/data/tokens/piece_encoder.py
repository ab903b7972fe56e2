"""Encode texts piece by piece, in a compiled loop over UTF-8.

Most pieces have been seen before; others are merged (`piece_merges`). A cache of fixed size remembers the tokens of
pieces up to 31 bytes: a row is one cache line, with the piece itself as key, so that a hit is exact, and up to 12
tokens. Two rows share a place, and the one used longer ago makes room: memory does not grow with the corpus, and
results do not depend on what was cached.
"""

# mypy: disable-error-code="no-untyped-def,assignment,call-arg"
# Compiled functions have no annotations: numba infers types, and numpy's describe scalars otherwise than it.

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import load64
from glmforge.data.compiled import non_allocating
from glmforge.data.tokens.encoder_tables import ID_BITS
from glmforge.data.tokens.piece_merges import LONG_PIECE, SCRATCH_PER_BYTE, merge_piece
from glmforge.data.tokens.split import piece_end

CACHE_ROWS = 1 << 18
"""16 MB: with 4 MB encoding is a quarter slower, more gains nothing."""

_MAX_CACHED_BYTES = 31
_MAX_CACHED_TOKENS = 12
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_FACTOR0, _FACTOR1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_FACTOR2, _FACTOR3 = np.uint64(0x94D049BB133111EB), np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(ID_BITS)
_ID_MASK = np.uint64((1 << ID_BITS) - 1)


def new_cache(num_rows: int = CACHE_ROWS) -> NDArray[np.uint64]:
    """An empty cache, rows on borders of cache lines; `num_rows` is a power of two."""
    raw = np.zeros(8 * num_rows + 8, np.uint64)
    start = (-raw.ctypes.data % 64) // 8
    return raw[start : start + 8 * num_rows].reshape(num_rows, 8)


@non_allocating
def encode_texts(text, offsets, first, size, tables, cache, scratch, short, end_id, out, lengths):
    """Encode texts given as UTF-8 end to end, until a piece is too long for `scratch`.

    Args:
        text, offsets: text i is `text[offsets[i]:offsets[i + 1]]`.
        first: the text to begin with.
        size: where to begin in `out`.
        tables: an `EncoderTables`.
        cache: of `new_cache`; changed.
        scratch: int64 `[any]`; changed.
        short: int32 `[3, LONG_PIECE]`; changed.
        end_id: written behind each text unless negative.
        out: int32, at least as long as the texts and an end for each; their ids, end to end.
        lengths: int64 `[n]`, ids of each text.

    Returns:
        (the first text that is not encoded yet, number of ids, length that `scratch` must have to go on).
    """
    byte_ids, classes = tables.byte_ids, tables.classes
    row_mask = np.uint64(len(cache) - 1)
    readable = len(text) - _MAX_CACHED_BYTES - 1
    for number in range(first, len(offsets) - 1):
        place, stop, before = offsets[number], offsets[number + 1], size
        while place < stop:
            end = _word_end(text, place, stop, classes)
            length = end - place
            if length == 1:
                out[size] = byte_ids[text[place]]
                size, place = size + 1, end
                continue
            if length > _MAX_CACHED_BYTES or place > readable:
                if length > LONG_PIECE and SCRATCH_PER_BYTE * length > len(scratch):
                    return number, before, SCRATCH_PER_BYTE * length
                size = merge_piece(text, place, end, tables, scratch, short, out, size)
                place = end
                continue
            word0 = load64(text, place) & _mask(length)
            word1 = load64(text, place + 8) & _mask(length - 8)
            word2 = load64(text, place + 16) & _mask(length - 16)
            word3 = load64(text, place + 24) & _mask(length - 24) | np.uint64(length) << np.uint64(56)
            value = (word0 * _FACTOR0) ^ (word1 * _FACTOR1) ^ (word2 * _FACTOR2) ^ (word3 * _FACTOR3)
            value = (value ^ value >> np.uint64(32)) * _FACTOR0
            row = value >> np.uint64(40) & row_mask
            if not _is_key(cache, row, word0, word1, word2, word3):
                if _is_key(cache, row ^ np.uint64(1), word0, word1, word2, word3):
                    _swap(cache, row)
                else:
                    start = size
                    size = merge_piece(text, place, end, tables, scratch, short, out, size)
                    if size - start <= _MAX_CACHED_TOKENS:
                        _remember(cache, row, word0, word1, word2, word3, out, start, size)
                    place = end
                    continue
            packed = cache[row, 4]
            out[size] = np.int32(packed & _ID_MASK) - 1
            size, place = size + 1, end
            packed >>= _SHIFT
            if packed:
                size = _unpack(cache, row, packed, out, size)
        if end_id >= 0:
            out[size] = end_id
            size += 1
        lengths[number] = size - before
    return len(offsets) - 1, size, len(scratch)


@non_allocating
def _word_end(text, start, stop, classes):
    """`piece_end`, of which a word in ASCII, with a blank before it or none, is the most frequent case."""
    first = text[start]
    if first == 0x20 or np.uint8((first | 0x20) - 0x61) < 26:
        place = start + 1
        while place < stop and np.uint8((text[place] | 0x20) - 0x61) < 26:
            place += 1
        if (place == stop or text[place] < 0x80) and (first != 0x20 or place > start + 1):
            return place
    return piece_end(text, start, stop, classes)


@non_allocating
def _mask(length):
    """Ones for the first `length` bytes of a word."""
    if length >= 8:
        return _ONES
    return _ONES >> np.uint64(64 - 8 * length) if length > 0 else np.uint64(0)


@non_allocating
def _is_key(cache, row, word0, word1, word2, word3):
    return (
        cache[row, 0] == word0 and cache[row, 3] == word3 and cache[row, 1] == word1 and cache[row, 2] == word2
    )  # fmt: skip


@non_allocating
def _swap(cache, row):
    other = row ^ np.uint64(1)
    for word in range(8):
        value = cache[row, word]
        cache[row, word] = cache[other, word]
        cache[other, word] = value


@non_allocating
def _unpack(cache, row, packed, out, size):
    """Tokens of a row but the first; `packed` is what is left of the first three."""
    word = 4
    while True:
        while packed:
            out[size] = np.int32(packed & _ID_MASK) - 1
            size += 1
            packed >>= _SHIFT
        word += 1
        if word == 8 or cache[row, word] == 0:
            return size
        packed = cache[row, word]


@non_allocating
def _remember(cache, row, word0, word1, word2, word3, ids, start, stop):
    _swap(cache, row)
    cache[row, 0], cache[row, 1], cache[row, 2], cache[row, 3] = word0, word1, word2, word3
    for word in range(4):
        packed = np.uint64(0)
        for place in range(2, -1, -1):
            index = start + 3 * word + place
            packed = packed << _SHIFT | (np.uint64(ids[index] + 1) if index < stop else np.uint64(0))
        cache[row, 4 + word] = packed
