"""The loop behind Gopher's n-gram rules.

An n-gram can stand twice only if its first n - 1 words do, so the n-grams of each length are looked up at those
places only at which the shorter ones repeat. In ordinary text that is everything for pairs, a third for triples and
next to nothing from five words on: nine lengths cost little more than one.
"""

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import mixed
from glmforge.data.compiled import compiled
from glmforge_corpus.filter.rules.tables import find_slot, table_size

_PRIME = np.uint64(0x9E3779B97F4A7C15)


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
