"""Byte-pair merges within one piece of text.

A piece's tokens are what is left when, of all neighbours that a merge joins, those of the earliest merge are joined,
the leftmost first, until there are none. Short pieces look for the next merge along their list; long ones (a text
without spaces is one piece) keep a heap.
"""

# mypy: disable-error-code="no-untyped-def,assignment,call-arg"
# Compiled functions have no annotations: numba infers types, and numpy's describe scalars otherwise than it.

import numpy as np

from glmforge.data.bytes_kernels import character_at
from glmforge.data.compiled import non_allocating
from glmforge.data.tokens.encoder_tables import NO_RANK, find_spelling, pair_rank

LONG_PIECE = 127
"""Bytes of the longest piece that is merged along its list: a place there has seven bits."""

SCRATCH_PER_BYTE = 5
"""Numbers of scratch memory per byte of a long piece: id, neighbours, and the heap, to which each of the up to n - 1
merges may add one more than it takes away."""


@non_allocating
def merge_piece(text, start, stop, tables, scratch, short, out, size):
    """Write the tokens of `text[start:stop]` to `out` from `size` on, where there is room for its bytes.

    Args:
        tables: an `EncoderTables`.
        scratch: int64, `SCRATCH_PER_BYTE` for each byte of a piece longer than `LONG_PIECE`; changed.
        short: int32 `[3, LONG_PIECE]`; changed.

    Returns:
        Where the tokens end in `out`.
    """
    if len(tables.spelling_table) > 1:
        token = find_spelling(text, start, stop, tables.spelling_table, tables.spellings, tables.spelling_offsets)
        if token >= 0:
            out[size] = token
            return size + 1
    if stop - start > LONG_PIECE:
        return _merge_long(text, start, stop, tables, scratch, out, size)
    return _merge_short(text, start, stop, tables, short, out, size)


@non_allocating
def _merge_short(text, start, stop, tables, short, out, size):
    """Places are linked to their neighbours; of each, `keys` has rank << 7 | place, so that the least comes next."""
    keys, after, before = short[0], short[1], short[2]
    pair_ranks, merged_ids = tables.pair_ranks, tables.merged_ids
    length = _first_symbols(text, start, stop, tables, keys, out, size)
    for place in range(length):
        after[place], before[place] = place + 1, place - 1
    while True:
        least = NO_RANK
        for place in range(length):
            least = min(least, keys[place])
        if least == NO_RANK:
            break
        place = least & 127
        second = after[place]
        third, first = after[second], before[place]
        token = merged_ids[least >> 7]
        out[size + place], keys[second], keys[place], after[place] = token, NO_RANK, NO_RANK, third
        if third < length:
            before[third] = place
            keys[place] = _key(pair_ranks, token, out[size + third], place)
        if first >= 0:
            keys[first] = _key(pair_ranks, out[size + first], token, first)
    place, kept = 0, size
    while place < length:
        out[kept] = out[size + place]
        kept += 1
        place = after[place]
    return kept


@non_allocating
def _first_symbols(text, start, stop, tables, keys, out, size):
    """The piece as bytes, and as characters where these come first in any case. Returns the number of symbols."""
    length, place = 0, start
    byte_before = -1
    while place < stop:
        width, token = 1, -1
        if text[place] >= 0xC0:
            point, width = character_at(text, place, stop)
            token = tables.character_ids[point] if point < len(tables.character_ids) else -1
            width = width if token >= 0 else 1
        byte = -1 if token >= 0 else np.int64(text[place])
        out[size + length] = token if token >= 0 else tables.byte_ids[byte]
        keys[length] = NO_RANK
        if byte >= 0 and byte_before >= 0:
            rank = tables.byte_ranks[byte_before << 8 | byte]
            keys[length - 1] = rank if rank == NO_RANK else rank << 7 | (length - 1)
        elif length > 0:
            keys[length - 1] = _key(tables.pair_ranks, out[size + length - 1], out[size + length], length - 1)
        byte_before = byte
        length += 1
        place += width
    return length


@non_allocating
def _key(pair_ranks, left, right, place):
    rank = pair_rank(pair_ranks, left, right)
    return rank if rank == NO_RANK else np.int32(rank << 7 | place)


@non_allocating
def _merge_long(text, start, stop, tables, scratch, out, size):
    """The same with a heap of rank << 32 | place; what it says of places that have changed is skipped."""
    length = stop - start
    ids, after, before = scratch[:length], scratch[length : 2 * length], scratch[2 * length : 3 * length]
    heap = scratch[3 * length : SCRATCH_PER_BYTE * length]
    heap_size = 0
    for place in range(length):
        ids[place] = tables.byte_ids[text[start + place]]
        after[place], before[place] = place + 1, place - 1
    for place in range(length - 1):
        rank = tables.byte_ranks[np.int64(text[start + place]) << 8 | text[start + place + 1]]
        heap_size = _push(heap, heap_size, rank, place)
    while heap_size:
        rank, place = heap[0] >> 32, heap[0] & 0xFFFFFFFF
        heap_size = _pop(heap, heap_size)
        second = after[place]
        if ids[place] < 0 or second >= length:
            continue
        if pair_rank(tables.pair_ranks, ids[place], ids[second]) != rank:
            continue
        ids[place], ids[second] = tables.merged_ids[rank], -1
        third, first = after[second], before[place]
        after[place] = third
        if third < length:
            before[third] = place
            heap_size = _push(heap, heap_size, pair_rank(tables.pair_ranks, ids[place], ids[third]), place)
        if first >= 0:
            heap_size = _push(heap, heap_size, pair_rank(tables.pair_ranks, ids[first], ids[place]), first)
    for place in range(length):
        if ids[place] >= 0:
            out[size] = ids[place]
            size += 1
    return size


@non_allocating
def _push(heap, size, rank, place):
    if rank == NO_RANK:
        return size
    value = np.int64(rank) << 32 | np.int64(place)
    hole = size
    while hole > 0 and heap[(hole - 1) >> 1] > value:
        heap[hole] = heap[(hole - 1) >> 1]
        hole = (hole - 1) >> 1
    heap[hole] = value
    return size + 1


@non_allocating
def _pop(heap, size):
    size -= 1
    value, hole = heap[size], 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[hole] = heap[child]
        hole = child
    heap[hole] = value
    return size
