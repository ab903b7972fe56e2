"""Anchors: few places of a text, chosen so that equal passages have an anchor in common (Schleimer, Wilkerson and
Aiken, "Winnowing", 2003).

Every stretch of `gram` bytes is hashed by a rolling polynomial; of every `window` neighbouring stretches the one with
the least hash is an anchor. Which it is depends on those bytes alone, so any two equal passages of at least
gram + window - 1 bytes have chosen an equal stretch inside, wherever they stand. About 2 / (window + 1) of all places
are anchors. Of equal hashes the latest is taken, but an anchor is kept while it may be ("robust" winnowing), so that
a million equal bytes do not become a million anchors.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.deduplicate.minhash.characters import mix

_BASE = np.uint64(0xD1342543DE82EF95)


def anchors(
    text_bytes: NDArray[np.uint8], offsets: NDArray[np.int64], gram: int, window: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """(hash, row, place in the text) of the anchors of each text, in order; shorter texts than can match have none."""
    expected = int(offsets[-1] - offsets[0]) * 3 // (window + 1) + len(offsets)
    while True:
        out = np.empty(expected, np.uint64), np.empty(expected, np.int64), np.empty(expected, np.int64)
        count = _anchors(text_bytes, offsets, gram, window, np.empty(window, np.uint64), *out)
        if count <= expected:
            return out[0][:count], out[1][:count], out[2][:count]
        expected = count


@compiled
def _anchors(text: Any, offsets: Any, gram: int, window: int, ring: Any, hashes: Any, rows: Any, places: Any) -> int:
    """Write anchors while there is room; return how many there are."""
    power = np.uint64(1)
    for _ in range(gram):
        power *= _BASE
    count = 0
    for row in range(len(offsets) - 1):
        first, size = offsets[row], offsets[row + 1] - offsets[row]
        num_grams = size - gram + 1
        if num_grams < window:
            continue
        state = np.uint64(0)
        for i in range(gram - 1):
            state = state * _BASE + np.uint64(text[first + i]) + np.uint64(1)
        least, where, slot, leaving = ~np.uint64(0), -1, 0, np.uint64(0)
        for i in range(num_grams):
            state = state * _BASE + np.uint64(text[first + i + gram - 1]) + np.uint64(1) - leaving * power
            leaving = np.uint64(text[first + i]) + np.uint64(1)
            hashed = mix(state)
            ring[slot] = hashed
            fresh = hashed < least or where < 0
            if fresh:
                least, where = hashed, i
            elif where + window <= i:
                least, where = _least(ring, slot, i)
                fresh = True
            if i == window - 1 or (fresh and i >= window):
                if count < len(hashes):
                    hashes[count], rows[count], places[count] = least, row, where
                count += 1
            slot = slot + 1 if slot + 1 < window else 0
    return count


@compiled
def _least(ring: Any, slot: int, i: int) -> Any:
    """(the least hash of a full ring, its index); the latest of equal ones. `slot` holds the newest, index `i`."""
    least, where = ring[slot], i
    for back in range(1, len(ring)):
        k = slot - back
        hashed = ring[k if k >= 0 else k + len(ring)]
        if hashed < least:
            least, where = hashed, i - back
    return least, where
