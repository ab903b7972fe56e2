"""The similarity of candidate pairs: exact Jaccard of their shingle sets, or the share of equal signature entries.

Sets are compared by a hash table per later text, which all its partners are held against. Nothing in the table is
ever cleared: each slot knows for which text or pair it was filled, so that comparing a pair costs its shingles.
Distinct shingles are told apart by 64 bits: in sets of a million each, a wrong match is a matter of 1 in 10^7.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled

Sets = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Hashes of all texts end to end, with repetitions, and the borders `[n + 1]` of texts among them."""


def jaccard_similarities(
    earlier: Sets, earlier_rows: NDArray[np.int64], later: Sets, later_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Exact Jaccard similarity of each pair; fastest if pairs with the same later text stand together."""
    longest = (
        np.diff(borders)[rows].max(initial=0) for (_, borders), rows in ((earlier, earlier_rows), (later, later_rows))
    )
    size = 2 << (2 * sum(map(int, longest))).bit_length()
    return _jaccards(*earlier, earlier_rows, *later, later_rows, size)  # type: ignore[no-any-return]


@compiled
def _jaccards(hashes_a: Any, borders_a: Any, rows_a: Any, hashes_b: Any, borders_b: Any, rows_b: Any, size: int) -> Any:
    keys, owner, seen = np.empty(size, np.uint64), np.zeros(size, np.int32), np.zeros(size, np.int32)
    out = np.empty(len(rows_a), np.float64)
    epoch = text = num_b = 0
    current = -1
    mask = np.uint64(0)
    for pair in range(len(rows_a)):
        if rows_b[pair] != current:
            current = rows_b[pair]
            mask = _mask(borders_a, rows_a, borders_b, rows_b, pair)
            epoch += 1
            text = epoch
            num_b = 0
            for k in range(borders_b[current], borders_b[current + 1]):
                key = hashes_b[k]
                slot = key & mask
                while owner[slot] == text and keys[slot] != key:
                    slot = (slot + np.uint64(1)) & mask
                if owner[slot] != text:
                    owner[slot], keys[slot] = text, key
                    num_b += 1
        epoch += 1
        common = only_a = 0
        for k in range(borders_a[rows_a[pair]], borders_a[rows_a[pair] + 1]):
            key = hashes_a[k]
            slot = key & mask
            while (owner[slot] == text or owner[slot] == epoch) and keys[slot] != key:
                slot = (slot + np.uint64(1)) & mask
            if owner[slot] == text:
                if seen[slot] != epoch:
                    seen[slot] = epoch
                    common += 1
            elif owner[slot] != epoch:
                owner[slot], keys[slot] = epoch, key
                only_a += 1
        union = num_b + only_a
        out[pair] = common / union if union else 0.0
    return out


@compiled
def _mask(borders_a: Any, rows_a: Any, borders_b: Any, rows_b: Any, pair: int) -> Any:
    """As much of the table as a text and the largest of its partners fill by half: a small part stays in cache."""
    text = rows_b[pair]
    largest = 0
    while pair < len(rows_b) and rows_b[pair] == text:
        largest = max(largest, borders_a[rows_a[pair] + 1] - borders_a[rows_a[pair]])
        pair += 1
    needed, size = 2 * (largest + borders_b[text + 1] - borders_b[text]), 1
    while size <= needed:
        size *= 2
    return np.uint64(size - 1)


def signature_similarities(
    earlier: NDArray[np.uint32],
    earlier_rows: NDArray[np.int64],
    later: NDArray[np.uint32],
    later_rows: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The share of equal entries: an estimate of J with a standard deviation of sqrt(J (1 - J) / entries)."""
    return _equal_shares(earlier, earlier_rows, later, later_rows)  # type: ignore[no-any-return]


@compiled
def _equal_shares(a: Any, rows_a: Any, b: Any, rows_b: Any) -> Any:
    out = np.empty(len(rows_a), np.float64)
    for pair in range(len(rows_a)):
        equal = 0
        for k in range(a.shape[1]):
            equal += a[rows_a[pair], k] == b[rows_b[pair], k]
        out[pair] = equal / a.shape[1]
    return out
