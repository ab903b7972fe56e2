"""The pairs of tokens that may be merged next: a table of what is known of each, and a heap that tells the best.

`sizes[PAIRS]`, `sizes[HEAP]` and `sizes[POOL]` count what is used of the arrays that the caller provides. Counts of a
pair only fall, so an entry of the heap may be outdated: what comes up with an old count is put back with the new one.
"""

# mypy: disable-error-code="no-untyped-def"
# Compiled functions have no annotations: numba infers types, and numpy's describe scalars otherwise than it.

import numpy as np

from glmforge.data.compiled import non_allocating

POOL, PAIRS, HEAP, MERGES = range(4)
"""What `sizes` counts; merges are the caller's."""

KEY, COUNT, START, NUMBER = range(4)
"""Columns of the table: a pair, how often it occurs, and the slice of the pool with its places."""

NONE = -1


@non_allocating
def pair_key(left, right):
    """A pair as one number, by which ties are decided, too."""
    return np.int64(left) << 32 | np.int64(right)


@non_allocating
def find_pair(table, key):
    """The slot that has the key, or the empty one where it belongs."""
    mask = np.uint64(len(table) - 1)
    value = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = (value >> np.uint64(32)) & mask
    while table[slot, KEY] != key and table[slot, KEY] != NONE:
        slot = (slot + np.uint64(1)) & mask
    return slot


@non_allocating
def add_pair(key, weight, number, sizes, table, heap, min_frequency):
    """Reserve a slice of the pool for a new pair's places; returns its start, or `NONE` if the pair is too rare."""
    if weight < min_frequency:
        return NONE
    slot, start = find_pair(table, key), sizes[POOL]
    table[slot, KEY], table[slot, COUNT], table[slot, START], table[slot, NUMBER] = key, weight, start, number
    sizes[PAIRS] += 1
    sizes[POOL] += number
    _push(heap, sizes, weight, key)
    return start


@non_allocating
def move_pairs(table, larger, min_frequency):
    """Copy the pairs that may still be merged; returns their number."""
    kept = 0
    for slot in range(len(table)):
        if table[slot, KEY] != NONE and table[slot, COUNT] >= min_frequency:
            place = find_pair(larger, table[slot, KEY])
            for column in range(4):
                larger[place, column] = table[slot, column]
            kept += 1
    return kept


@non_allocating
def _push(heap, sizes, count, key):
    place = sizes[HEAP]
    heap[place, 0], heap[place, 1] = count, key
    sizes[HEAP] += 1
    while place > 0 and _before(heap, place, (place - 1) >> 1):
        _swap(heap, place, (place - 1) >> 1)
        place = (place - 1) >> 1


@non_allocating
def pop(heap, sizes):
    """Remove the first entry, `heap[0]`: count and key of the pair that is next, unless the count is outdated."""
    sizes[HEAP] -= 1
    heap[0, 0], heap[0, 1] = heap[sizes[HEAP], 0], heap[sizes[HEAP], 1]
    sift_down(heap, 0, sizes[HEAP])


@non_allocating
def sift_down(heap, place, size):
    """Put an entry whose count has fallen where it belongs."""
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _before(heap, child + 1, child):
            child += 1
        if not _before(heap, child, place):
            return
        _swap(heap, place, child)
        place = child


@non_allocating
def _before(heap, a, b):
    return heap[a, 0] > heap[b, 0] or (heap[a, 0] == heap[b, 0] and heap[a, 1] < heap[b, 1])


@non_allocating
def _swap(heap, a, b):
    count, key = heap[a, 0], heap[a, 1]
    heap[a, 0], heap[a, 1] = heap[b, 0], heap[b, 1]
    heap[b, 0], heap[b, 1] = count, key
