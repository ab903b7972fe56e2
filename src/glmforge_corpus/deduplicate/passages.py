"""Passages that occur in two texts: from equal anchors to the longest equal stretch around them.

Anchors are few places of a text, chosen so that equal passages have one in common (Schleimer, Wilkerson and Aiken,
"Winnowing", 2003). Every stretch of `gram` bytes is hashed by a rolling polynomial; of every `window` neighbouring
stretches the one with the least hash is an anchor. Which it is depends on those bytes alone, so two equal passages of
at least gram + window - 1 bytes have chosen an equal stretch inside. About 2 / (window + 1) of all places are anchors.
Of equal hashes the latest is taken, but an anchor is kept while it may be ("robust" winnowing), so that a million
equal bytes do not become a million anchors.

Whatever the hashes said, bytes decide. Only the later text of a pair loses anything, so that the first occurrence of
every passage stays. As with bands, an anchor that very many texts have is compared with the first and with the
`NEIGHBOURS` before it only: what they have in common is found, at a cost linear in the number of texts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.deduplicate.places import open_array, places
from glmforge_corpus.deduplicate.units import mix

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


NEIGHBOURS = 3
PATIENCE = 16
"""When two texts have been compared over this many times the later one's length (a table of a million equal rows has
equal anchors at any distance), what lies inside the longest equal stretch found so far is not measured again."""

MAX_SHIFT = 40
"""Bytes that a border of a cut moves at most to reach the border of a word."""


class Matches(NamedTuple):
    """Equal anchors, sorted by later text, earlier text, distance.

    Attributes:
        later, earlier: `[m]` places of texts; may be the same text.
        later_start, earlier_start: `[m]` the anchor's first byte in each.
    """

    later: NDArray[np.uint64]
    later_start: NDArray[np.int64]
    earlier: NDArray[np.uint64]
    earlier_start: NDArray[np.int64]

    def sorted(self) -> "Matches":
        order = np.lexsort((self.later_start, self.later_start - self.earlier_start, self.earlier, self.later))
        return Matches(self.later[order], self.later_start[order], self.earlier[order], self.earlier_start[order])


def write_anchors(
    directory: Path, hashes: NDArray[np.uint64], rows: NDArray[np.int64], starts: NDArray[np.int64]
) -> None:
    """Store the anchors of a shard, sorted by hash."""
    order = np.argsort(hashes, kind="stable")
    np.save(directory / "hash.npy", hashes[order])
    np.save(directory / "row.npy", rows[order].astype(np.uint32))
    np.save(directory / "start.npy", starts[order].astype(np.uint32))


def find_matches(directories: Sequence[Path], part: int, num_parts: int) -> Matches:
    """The matches of one part of the hashes; shards are numbered as they are listed."""
    first, last = (part << 64) // num_parts, ((part + 1) << 64) // num_parts - 1
    hashes, texts, starts = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for shard, directory in enumerate(directories):
        stored = open_array(directory / "hash.npy")
        some = slice(np.searchsorted(stored, np.uint64(first)), np.searchsorted(stored, np.uint64(last), "right"))
        hashes.append(stored[some])
        texts.append(places(shard, open_array(directory / "row.npy")[some]))
        starts.append(open_array(directory / "start.npy")[some].astype(np.int64))
    hashed, text, start = np.concatenate(hashes), np.concatenate(texts), np.concatenate(starts)
    order = np.argsort(hashed, kind="stable")  # merges sorted slices; equal ones stay in the order of texts
    later, earlier = _match(hashed[order])
    later, earlier = order[later], order[earlier]
    return Matches(text[later], start[later], text[earlier], start[earlier]).sorted()


@compiled
def _match(hashes: Any) -> Any:
    """Indices of later and earlier anchors: each with the first of its hash and those just before it."""
    count = begin = 0
    for i in range(len(hashes)):
        if hashes[i] != hashes[begin]:
            begin = i
        count += min(i - begin, NEIGHBOURS + 1)
    later, earlier = np.empty(count, np.int64), np.empty(count, np.int64)
    count = begin = 0
    for i in range(len(hashes)):
        if hashes[i] != hashes[begin]:
            begin = i
        for k in range(min(i - begin, NEIGHBOURS + 1)):
            later[count] = i
            earlier[count] = begin if k == NEIGHBOURS else i - 1 - k
            count += 1
    return later, earlier


Texts = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Bytes of texts end to end, and their borders `[n + 1]`."""


def equal_passages(
    later: Texts,
    later_index: NDArray[np.int64],
    earlier: Texts,
    earlier_index: NDArray[np.int64],
    starts: tuple[NDArray[np.int64], NDArray[np.int64]],
    min_length: int,
) -> NDArray[np.int64]:
    """`[k, 3]` (index of the later text, start, stop in it) of equal passages of at least `min_length` bytes.

    Args:
        later_index, earlier_index: `[m]` of each match, in the order of `Matches`.
        starts: of the anchor in the later and the earlier text.
    """
    out = np.empty((len(later_index), 3), np.int64)
    count = _equal_passages(*later, later_index, *earlier, earlier_index, *starts, min_length, out)
    return out[:count]


@compiled
def _equal_passages(
    text_b: Any,
    borders_b: Any,
    index_b: Any,
    text_a: Any,
    borders_a: Any,
    index_a: Any,
    start_b: Any,
    start_a: Any,
    min_length: int,
    out: Any,
) -> int:
    count = known = spent = longest_start = longest_stop = 0
    for m in range(len(index_b)):
        if m == 0 or index_b[m] != index_b[m - 1] or index_a[m] != index_a[m - 1]:
            known = spent = longest_start = longest_stop = 0
        elif start_b[m] - start_a[m] != start_b[m - 1] - start_a[m - 1]:
            known = 0
        if start_b[m] < known:  # inside the stretch that the match before has measured
            continue
        is_slow = spent > PATIENCE * (borders_b[index_b[m] + 1] - borders_b[index_b[m]])
        if is_slow and longest_start <= start_b[m] < longest_stop:
            continue
        first_b, last_b = borders_b[index_b[m]], borders_b[index_b[m] + 1]
        first_a, last_a = borders_a[index_a[m]], borders_a[index_a[m] + 1]
        b, a = first_b + start_b[m], first_a + start_a[m]
        length = 0
        while b + length < last_b and a + length < last_a and text_b[b + length] == text_a[a + length]:
            length += 1
        known = start_b[m] + max(length, 1)
        back = 0
        while b - back > first_b and a - back > first_a and text_b[b - back - 1] == text_a[a - back - 1]:
            back += 1
        spent += back + length
        if back + length > longest_stop - longest_start:
            longest_start, longest_stop = start_b[m] - back, start_b[m] + length
        if back + length >= min_length:
            out[count, 0], out[count, 1], out[count, 2] = index_b[m], start_b[m] - back, start_b[m] + length
            count += 1
    return count


def merged(passages: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[k, 3]`: sorted by text and start, overlapping and touching passages as one."""
    passages = passages[np.lexsort((passages[:, 1], passages[:, 0]))]
    return _merge(passages)  # type: ignore[no-any-return]


@compiled
def _merge(passages: Any) -> Any:
    out, count = np.empty_like(passages), 0
    for k in range(len(passages)):
        if count and out[count - 1, 0] == passages[k, 0] and passages[k, 1] <= out[count - 1, 2]:
            out[count - 1, 2] = max(out[count - 1, 2], passages[k, 2])
        else:
            out[count] = passages[k]
            count += 1
    return out[:count]


@compiled
def snap(text: Any, borders: Any, passages: Any) -> None:
    """Shrink passages, in place, to borders of words where one is near, and of characters in any case."""
    for k in range(len(passages)):
        first, last = borders[passages[k, 0]], borders[passages[k, 0] + 1]
        start, stop = first + passages[k, 1], first + passages[k, 2]
        while start < stop and text[start] & 0xC0 == 0x80:
            start += 1
        while stop > start and stop < last and text[stop] & 0xC0 == 0x80:
            stop -= 1
        passages[k, 1] = _word_after(text, first, start, stop) - first
        at_border = stop == last or _is_space(text[stop])
        passages[k, 2] = (stop if at_border else _word_before(text, start, stop)) - first


@compiled
def _word_after(text: Any, first: int, start: int, stop: int) -> int:
    """The first place from `start` on that follows a space or `first`, or `start`."""
    for place in range(start, min(start + MAX_SHIFT, stop)):
        if place == first or _is_space(text[place - 1]):
            return place
    return start


@compiled
def _word_before(text: Any, start: int, stop: int) -> int:
    """The last place up to `stop` that follows a space, or `stop`."""
    for place in range(stop, max(stop - MAX_SHIFT, start), -1):
        if _is_space(text[place - 1]):
            return place
    return stop


@compiled
def _is_space(byte: Any) -> Any:
    return byte == 32 or 9 <= byte <= 13
