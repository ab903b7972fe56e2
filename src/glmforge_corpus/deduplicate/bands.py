"""From band keys to candidate pairs, with memory for one part of the key space at a time.

Every shard's keys lie sorted in a file of their own. A part is a range of keys: its slices of all files are brought
together, sorted, and texts with equal keys are candidates. As many parts as there are shards (at most `MAX_PARTS`)
keep the memory of a task at about that of a shard, however large the corpus is.

A key that many texts share (the same licence, the same empty template) would give a quadratic number of pairs. Up to
`SMALL_BUCKET` texts all pairs are taken; of a larger bucket each text is paired with the first and with the
`NEIGHBOURS` before it: linear, and enough to hold a cluster of equal texts together.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge.errors import DataError
from glmforge_corpus.deduplicate.places import Places, open_array, places

MAX_PARTS = 256
SMALL_BUCKET = 8
NEIGHBOURS = 3

ROW_BITS = 24
"""A stored key keeps its upper 40 bits and has the row of its text in the lower 24, so that sorting one array sorts
both. Two keys agree in 40 bits by chance once in 10^12; such a pair costs a verification."""

_ROW_MASK = np.uint64((1 << ROW_BITS) - 1)
_DIGIT_BITS, _NUM_DIGITS = 10, 4  # of the radix sort: an even number, so that the result is where the input was

KEYS = "keys.npy"


def write_keys(directory: Path, keys: NDArray[np.uint64], has_shingles: NDArray[np.bool_]) -> None:
    """Sort and store the band keys `[n, bands]` of a shard, without those of texts that have no shingles.

    Raises:
        DataError: the shard has more documents than a row number can tell apart.
    """
    if len(keys) > 1 << ROW_BITS:
        raise DataError(
            f"a shard of {len(keys):,} documents; at most {1 << ROW_BITS:,} are supported; use smaller shards"
        )
    rows = np.flatnonzero(has_shingles).astype(np.uint64)
    packed = (keys[has_shingles] & ~_ROW_MASK | rows[:, None]).ravel()
    _sort_upper_bits(packed, np.empty_like(packed))
    np.save(directory / KEYS, packed)


@compiled
def _sort_upper_bits(values: Any, spare: Any) -> None:
    """Sort by the bits above the row, which rise already in what is equal there: by ten bits at a time, from the lowest
    (a radix sort: a seventh of the time of a sort by comparisons, and the same result)."""
    digit = np.uint64((1 << _DIGIT_BITS) - 1)
    starts = np.zeros((_NUM_DIGITS, 1 << _DIGIT_BITS), np.int64)
    for value in values:
        for k in range(_NUM_DIGITS):
            starts[k, value >> np.uint64(ROW_BITS + k * _DIGIT_BITS) & digit] += 1
    for k in range(_NUM_DIGITS):
        total = 0
        for d in range(1 << _DIGIT_BITS):
            count = starts[k, d]
            starts[k, d] = total
            total += count
        shift = np.uint64(ROW_BITS + k * _DIGIT_BITS)
        for value in values:
            d = value >> shift & digit
            spare[starts[k, d]] = value
            starts[k, d] += 1
        values, spare = spare, values


def candidates(directories: Sequence[Path], part: int, num_parts: int, num_old: int) -> tuple[Places, Places]:
    """The candidate pairs of one part of the key space.

    Args:
        directories: of the shards' keys; their positions are the shards' numbers.
        num_old: how many of them are only compared with: no pair has both texts there.

    Returns:
        earlier and later text of each pair, sorted by the later, then the earlier; no pair twice.
    """
    bounds = [(bound << 40) // num_parts << ROW_BITS for bound in (part, part + 1)]
    keys, owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for shard, directory in enumerate(directories):
        stored = open_array(directory / KEYS)
        start = np.searchsorted(stored, np.uint64(bounds[0]))
        stop = np.searchsorted(stored, np.uint64(bounds[1] - 1), side="right")
        if stop > start:
            keys.append(stored[start:stop] >> np.uint64(ROW_BITS))
            owners.append(places(shard, stored[start:stop] & _ROW_MASK))
    key, owner = np.concatenate(keys), np.concatenate(owners)
    if len(keys) > 2:
        order = np.argsort(key, kind="stable")  # merges what is sorted already, earlier shards first
        key, owner = key[order], owner[order]
    first_new = np.uint64(num_old << 32)
    room = np.empty((_pair(key, owner, first_new, np.empty((0, 2), np.uint64)), 2), np.uint64)
    _pair(key, owner, first_new, room)
    return unique_pairs(room[:, 0], room[:, 1])


def unique_pairs(earlier: Places, later: Places) -> tuple[Places, Places]:
    """The pairs sorted by the later text, then the earlier, each once."""
    order = np.lexsort((earlier, later))
    earlier, later = earlier[order], later[order]
    fresh = np.ones(len(earlier), np.bool_)
    fresh[1:] = (earlier[1:] != earlier[:-1]) | (later[1:] != later[:-1])
    return earlier[fresh], later[fresh]


@compiled
def _pair(keys: Any, owners: Any, first_new: Any, out: Any) -> int:
    """Count the pairs, and write them if `out` has room."""
    start = count = 0
    for stop in range(1, len(keys) + 1):
        if stop < len(keys) and keys[stop] == keys[start]:
            continue
        for j in range(start + 1, stop):
            if owners[j] < first_new:
                continue
            lowest = start if stop - start <= SMALL_BUCKET else max(start, j - NEIGHBOURS)
            if lowest > start:
                count = _add(owners[start], owners[j], out, count)
            for i in range(lowest, j):
                count = _add(owners[i], owners[j], out, count)
        start = stop
    return count


@compiled
def _add(a: Any, b: Any, out: Any, count: int) -> int:
    if a == b:  # two bands of one text with the same key, by chance
        return count
    if len(out):
        out[count, 0], out[count, 1] = a, b
    return count + 1
