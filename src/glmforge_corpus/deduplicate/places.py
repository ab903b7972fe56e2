"""Where a document stands in a corpus, as one number, and the arrays of such numbers on disk.

Place = shard * 2^32 + row, so that the order of places is the order of documents, sorted places of one shard lie
together, and a place can be given without knowing how many documents other shards have.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROW_BITS = np.uint64(32)
_SMALL_FILE = 1 << 20

Places = NDArray[np.uint64]


def places(shard: int, rows: NDArray[np.integer]) -> Places:
    """The places of some rows of a shard."""
    return rows.astype(np.uint64) | np.uint64(shard << 32)


def rows_of(numbers: Places) -> NDArray[np.int64]:
    """The row of each place in its shard."""
    return (numbers & np.uint64(0xFFFFFFFF)).astype(np.int64)


def shards_of(numbers: Places) -> NDArray[np.int64]:
    """The shard of each place."""
    return (numbers >> _ROW_BITS).astype(np.int64)


def part_of_shard(sorted_numbers: Places, shard: int) -> slice:
    """Which of some sorted places lie in a shard."""
    start, stop = np.searchsorted(sorted_numbers, np.array([shard << 32, (shard + 1) << 32], np.uint64))
    return slice(int(start), int(stop))


def rows_in_shard(path: Path, shard: int) -> NDArray[np.int64]:
    """The rows of a shard among the sorted places in a file; the rest of the file is not read."""
    numbers = open_array(path)
    return rows_of(numbers[part_of_shard(numbers, shard)])


def open_array(path: Path) -> NDArray[Any]:
    """An array that `numpy.save` wrote: mapped if it is large, read if it is small (an empty file has no map)."""
    array = np.load(path, mmap_mode="r" if path.stat().st_size > _SMALL_FILE else None)
    return np.asarray(array)


def open_raw(path: Path, kind: type[np.generic]) -> NDArray[Any]:
    """A file of numbers without a header, mapped, read-only."""
    if not path.stat().st_size:
        empty = np.zeros(0, kind)
        empty.flags.writeable = False
        return empty
    return np.asarray(np.memmap(path, kind, "r"))


def dense_mask(rows: NDArray[np.integer], start: int, count: int) -> NDArray[np.bool_]:
    """`[count]`: which of the rows from `start` on are among the sorted `rows`."""
    mask = np.zeros(count, np.bool_)
    first, last = np.searchsorted(rows, [start, start + count])
    mask[rows[first:last] - start] = True
    return mask
