"""128-bit fingerprints of texts and of their paragraphs, and which of them occur again.

"words" compares what is left when case and spacing are ignored, "bytes" the text as it is. Two halves of 64 bits run
over the same words (or groups of eight bytes) with different multipliers: among 10^12 pieces the chance of any wrong
match by the halves is 10^-15. A word itself is known by 64 bits; that two words of one corpus are confused and stand
between equal neighbours is rarer still. The hash is fixed, fast, and not made against an adversary.

A stored record is a fingerprint and where it is from: a document's place and, for a piece of it, a number within.
Every shard's records are sorted by the upper half. A part is a range of upper halves; its slices of all shards are
merged, with memory for one part at a time, and everything that equals an earlier record, in the order of places and
numbers, is a repeat.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import load64
from glmforge.data.compiled import compiled
from glmforge_corpus.deduplicate.places import Places, open_array, part_of_shard, places, rows_of
from glmforge_corpus.deduplicate.units import character_table, hash_units, mix

Compare = Literal["words", "bytes"]
Paragraph = Literal["line", "block"]


def fingerprints(
    text_bytes: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64], compare: Compare
) -> NDArray[np.uint64]:
    """`[n, 2]` of the pieces `text_bytes[starts[i]:stops[i]]`."""
    by_words = compare == "words"
    longest = int((stops - starts).max(initial=0))
    units = np.empty(longest // 2 + 2 if by_words else 0, np.uint64)
    out = np.empty((len(starts), 2), np.uint64)
    _fingerprints(text_bytes, starts, stops, character_table("word", False), by_words, units, out)
    return out


@compiled
def _fingerprints(text: Any, starts: Any, stops: Any, table: Any, by_words: bool, units: Any, out: Any) -> None:
    for i in range(len(starts)):
        upper, lower = np.uint64(0x9AE16A3B2F90404F), np.uint64(0xC3A5C85C97CB3127)
        if by_words:
            for k in range(hash_units(text, starts[i], stops[i], table, False, units)):
                upper, lower = _absorb(upper, lower, units[k])
        else:
            place, stop = np.uint64(starts[i]), np.uint64(stops[i])
            while place < stop:
                upper, lower = _absorb(upper, lower, _group(text, place, stop))
                place += np.uint64(8)
            upper, lower = _absorb(upper, lower, np.uint64(stops[i] - starts[i]))
        out[i, 0], out[i, 1] = mix(upper), mix(lower)


@compiled
def _absorb(upper: Any, lower: Any, value: Any) -> Any:
    upper = (upper ^ value) * np.uint64(0x9FB21C651E98DF25)
    lower = (lower ^ (value << np.uint64(32) | value >> np.uint64(32))) * np.uint64(0xD1342543DE82EF95)
    return upper ^ upper >> np.uint64(35), lower ^ lower >> np.uint64(29)


@compiled
def _group(text: Any, place: Any, stop: Any) -> Any:
    """Up to eight bytes from `place` on, filled up with zeros."""
    if place + np.uint64(8) <= stop:
        return load64(text, place)
    group = np.uint64(0)
    for k in range(stop - place):
        group |= np.uint64(text[place + np.uint64(k)]) << np.uint64(8 * k)
    return group


def paragraphs(
    text_bytes: NDArray[np.uint8], offsets: NDArray[np.int64], kind: Paragraph
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The paragraphs of each text: lines, or blocks of lines between blank ones.

    Returns:
        borders `[n + 1]` of texts among the paragraphs; starts and stops in `text_bytes`, line ends omitted. A
        paragraph reaches to the start of the next, or the end of its text, if what separates them is counted in.
    """
    text = (text_bytes, offsets, kind == "block")
    borders, none = np.zeros(len(offsets), np.int64), np.empty(0, np.int64)
    _paragraphs(*text, borders, none, none)
    starts, stops = np.empty(borders[-1], np.int64), np.empty(borders[-1], np.int64)
    _paragraphs(*text, borders, starts, stops)
    return borders, starts, stops


@compiled
def _paragraphs(text: Any, offsets: Any, blocks: bool, borders: Any, starts: Any, stops: Any) -> None:
    """Count the paragraphs, and write them if there is room. A blank line is none of its own."""
    count = 0
    for row in range(len(offsets) - 1):
        line, inside = offsets[row], False
        while line < offsets[row + 1]:
            end, blank = line, True
            while end < offsets[row + 1] and text[end] != 10:
                blank = blank and (text[end] == 32 or 9 <= text[end] <= 13)
                end += 1
            if not blank:
                if not (inside and blocks):
                    count += 1
                if len(starts):
                    if not (inside and blocks):
                        starts[count - 1] = line
                    stops[count - 1] = end
            inside = not blank
            line = end + 1
        borders[row + 1] = count


class Repeats(NamedTuple):
    """What has occurred before, sorted by place and number.

    Attributes:
        place, number: `[m]` where it is.
        ordinal: `[m]` which occurrence: 2 for the second.
    """

    place: Places
    number: NDArray[np.int64]
    ordinal: NDArray[np.int64]

    def save(self, directory: Path, kind: str) -> None:
        for name, array in self._asdict().items():
            np.save(directory / f"{kind}_{name}.npy", array)


def write_records(
    directory: Path,
    kind: str,
    fingerprint: NDArray[np.uint64],
    rows: NDArray[np.integer],
    numbers: NDArray[np.integer] | None = None,
) -> None:
    """Store the records of a shard, `[n, 2]`, `[n]` and `[n]`, which must come in the order of rows and numbers."""
    order = np.argsort(fingerprint[:, 0], kind="stable")
    np.save(directory / f"{kind}_upper.npy", fingerprint[order, 0])
    np.save(directory / f"{kind}_lower.npy", fingerprint[order, 1])
    np.save(directory / f"{kind}_row.npy", rows[order].astype(np.uint32))
    if numbers is not None:
        np.save(directory / f"{kind}_number.npy", numbers[order].astype(np.uint32))


def find_repeats(directories: Sequence[Path], kind: str, part: int, num_parts: int) -> Repeats:
    """The repeats among the records of one part of the fingerprints; shards are numbered as they are listed."""
    first, last = (part << 64) // num_parts, ((part + 1) << 64) // num_parts - 1
    columns = [[np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64)]]
    for shard, directory in enumerate(directories):
        upper = open_array(directory / f"{kind}_upper.npy")
        some = slice(np.searchsorted(upper, np.uint64(first)), np.searchsorted(upper, np.uint64(last), "right"))
        place = places(shard, open_array(directory / f"{kind}_row.npy")[some])
        numbered = directory / f"{kind}_number.npy"
        number = open_array(numbered)[some].astype(np.int64) if numbered.exists() else np.zeros(len(place), np.int64)
        columns.append([upper[some], open_array(directory / f"{kind}_lower.npy")[some], place, number])
    return _repeats(*map(np.concatenate, zip(*columns, strict=True)))


def _repeats(upper: NDArray[np.uint64], lower: NDArray[np.uint64], place: Places, number: NDArray[np.int64]) -> Repeats:
    order = np.argsort(upper, kind="stable")  # merges sorted slices; equal ones stay in the order of places
    same = upper[order][1:] == upper[order][:-1]
    if (same & (lower[order][1:] != lower[order][:-1])).any():  # a collision of upper halves
        order = np.lexsort((lower, upper))
        same = upper[order][1:] == upper[order][:-1]
    same &= lower[order][1:] == lower[order][:-1]
    again = np.concatenate([np.zeros(min(len(order), 1), np.bool_), same])
    index = np.arange(len(order))
    ordinal = index - np.maximum.accumulate(np.where(again, 0, index)) + 1 if len(order) else index
    found = order[again]
    by_place = np.lexsort((number[found], place[found]))
    found = found[by_place]
    return Repeats(place[found], number[found], ordinal[again][by_place])


def repeats_of_shard(directories: Sequence[Path], kind: str, shard: int) -> Repeats:
    """The repeats in a shard, from what all parts found; `place` becomes the row."""
    columns = [[np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)]]
    for directory in directories:
        place = open_array(directory / f"{kind}_place.npy")
        some = part_of_shard(place, shard)
        rest = (open_array(directory / f"{kind}_{name}.npy")[some] for name in ("number", "ordinal"))
        columns.append([rows_of(place[some]), *rest])
    row, number, ordinal = map(np.concatenate, zip(*columns, strict=True))
    order = np.lexsort((number, row))
    return Repeats(row[order], number[order], ordinal[order])
