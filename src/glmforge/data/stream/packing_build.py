"""Compute the best-fit packing of a shard and store it, whole or not at all.

The shard's index is read twice, in stretches: once to count the pieces of each length, which is all that
`best_fit_decreasing` asks for, and once to write each piece into the row it was given. In memory are four bytes per
piece and sixteen per row; the file itself is written through a map, whose pages the system may put on the disk at
any time. Its space is reserved first, as a disk that fills up under a map kills the process.

The file grows under a name of its own process: several may build the same packing at once, on one node or on many,
and publish the same bytes. A process that is killed leaves its `.partial` behind.
"""

import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.stream.best_fit import best_fit_decreasing
from glmforge.data.stream.packing_file import HEADER_BYTES, PackingCounts, make_header, packing_arrays
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import DataError
from glmforge.runtime.durable import fsync_directory, fsync_file

OnProgress = Callable[[float], None]
"""Called with the share of the work that is done, 0 to 1."""

Integers = NDArray[np.int64]

_STRETCH_TOKENS = 1 << 24
_STRETCH_ITEMS = 1 << 22


def build_packing(
    shard: TokenShard, seq_len: int, identity: bytes, path: Path, progress: OnProgress = lambda _: None
) -> PackingCounts:
    """Write the packing of `shard` into rows of `seq_len` tokens to `path`.

    Raises:
        DataError: the directory cannot be written, or the disk is full.
    """
    counts_S, counts = _count(shard, seq_len, lambda share: progress(0.5 * share))
    bin_of_item, num_bins = best_fit_decreasing(counts_S)
    counts = replace(counts, num_rows=counts.num_full_rows + num_bins)
    with _appearing(path) as partial:
        _reserve(partial, counts.num_bytes)
        contents = np.memmap(partial, np.uint8, "r+")
        offsets_R, starts_P, lengths_P = packing_arrays(np.asarray(contents), counts)
        _write_offsets(offsets_R, counts.num_full_rows, bin_of_item)
        places = _Places(counts_S, bin_of_item, offsets_R[counts.num_full_rows : -1].copy())
        _write_pieces(shard, seq_len, places, starts_P, lengths_P, lambda share: progress(0.5 + 0.5 * share))
        contents[:HEADER_BYTES] = np.frombuffer(make_header(identity, _checksum(contents), counts), np.uint8)
        contents.flush()
    return counts


def document_stretches(shard: TokenShard, num_tokens: int = _STRETCH_TOKENS) -> Iterator[tuple[Integers, Integers]]:
    """First token and length of every document that has any, in order, in stretches of about `num_tokens` tokens."""
    start = stop = 0
    while start < shard.num_tokens:
        stop = min(stop + num_tokens, shard.num_tokens)
        lengths = shard.document_lengths(start, stop)
        starts = start + np.cumsum(lengths) - lengths
        if stop == shard.num_tokens:
            yield starts, lengths
            return
        start = int(starts[-1])  # that document may go on beyond the stretch
        if len(starts) > 1:
            yield starts[:-1], lengths[:-1]


def _count(shard: TokenShard, seq_len: int, progress: OnProgress) -> tuple[Integers, PackingCounts]:
    """How many pieces of each length below S there are, [S + 1], and the counts, as yet of full rows alone."""
    counts_S = np.zeros(seq_len + 1, np.int64)
    num_documents = num_full = num_cut = num_cut_by_truncation = 0
    for starts, lengths in document_stretches(shard):
        counts_S += np.bincount(lengths % seq_len, minlength=seq_len + 1)
        num_documents += len(lengths)
        num_full += int((lengths // seq_len).sum())
        num_cut += int((lengths > seq_len).sum())
        num_cut_by_truncation += int((starts // seq_len != (starts + lengths - 1) // seq_len).sum())
        progress(int(starts[-1] + lengths[-1]) / shard.num_tokens)
    counts_S[0] = 0  # nothing remains of these documents
    return counts_S, PackingCounts(
        seq_len=seq_len,
        num_rows=num_full,
        num_pieces=num_full + int(counts_S.sum()),
        num_full_rows=num_full,
        num_documents=num_documents,
        num_tokens=shard.num_tokens,
        num_cut=num_cut,
        num_cut_by_truncation=num_cut_by_truncation,
    )


def _write_offsets(offsets_R: Integers, num_full: int, bin_of_item: NDArray[Any]) -> None:
    """One piece in each full row, in the others as many as items were put into the bin."""
    offsets_R[: num_full + 1] = np.arange(num_full + 1)
    pieces = offsets_R[num_full + 1 :]
    for first in range(0, len(bin_of_item), _STRETCH_ITEMS):
        np.add.at(pieces, bin_of_item[first : first + _STRETCH_ITEMS], 1)
    np.cumsum(pieces, out=pieces)
    pieces += num_full


class _Places:
    """Deals the places of pieces in the file, given the pieces' lengths in the order of the shard."""

    def __init__(self, counts_S: Integers, bin_of_item: NDArray[Any], next_place_of_bin: Integers) -> None:
        self._next_item_of_size = np.cumsum(counts_S[::-1])[::-1] - counts_S  # items come by decreasing size
        self._bin_of_item = bin_of_item
        self._next_place_of_bin = next_place_of_bin

    def deal(self, sizes: Integers) -> Integers:
        items = self._next_item_of_size[sizes] + _earlier_equals(sizes)
        np.add.at(self._next_item_of_size, sizes, 1)
        bins = self._bin_of_item[items]
        places: Integers = self._next_place_of_bin[bins] + _earlier_equals(bins)
        np.add.at(self._next_place_of_bin, bins, 1)
        return places


def _write_pieces(
    shard: TokenShard, seq_len: int, places: _Places, starts_P: Integers, lengths_P: NDArray[Any], progress: OnProgress
) -> None:
    num_full = 0
    for starts, lengths in document_stretches(shard):
        full, remainders = np.divmod(lengths, seq_len)
        total = int(full.sum())
        number = np.arange(total) - np.repeat(np.cumsum(full) - full, full)  # of the piece in its document
        starts_P[num_full : num_full + total] = np.repeat(starts, full) + number * seq_len
        lengths_P[num_full : num_full + total] = seq_len
        num_full += total
        rest = remainders > 0
        dealt = places.deal(remainders[rest])
        starts_P[dealt] = (starts + full * seq_len)[rest]
        lengths_P[dealt] = remainders[rest]
        progress(int(starts[-1] + lengths[-1]) / shard.num_tokens)


def _earlier_equals(values: NDArray[Any]) -> Integers:
    """For each value, how many equal ones come before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    earlier = np.empty(len(values), np.int64)
    earlier[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return earlier


def _checksum(contents: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(contents[HEADER_BYTES:].data).digest()


def _reserve(path: Path, num_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(num_bytes)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(file.fileno(), 0, num_bytes)


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """The name under which `path` is to be written; it becomes `path`, durably, if the block ends well."""
    partial = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        fsync_file(partial)
        partial.rename(path)
        fsync_directory(path.parent)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); free some space, or set data.packing_dir to a "
            "writable directory"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()
