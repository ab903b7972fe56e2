"""Finding what occurs again, in files of sorted 128-bit fingerprints, with memory for a part of them at a time.

A record is a fingerprint and where it is from: a document's place and, for a piece of it, a number within. Every
shard's records lie sorted by the upper half. A part is a range of upper halves; its slices of all shards are merged,
and whatever equals an earlier record, in the order of places and numbers, is a repeat.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge_corpus.deduplicate.places import Places, open_array, part_of_shard, places, rows_of


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
