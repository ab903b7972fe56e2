"""Rows of whole documents: best-fit packing, computed once, stored and read.

A document of more than S tokens is cut into pieces of S; what remains of it, and every shorter document, is one
piece, and the pieces are packed by best-fit-decreasing (Ding et al., "Fewer Truncations Improve Language
Modeling", 2024, arXiv:2404.10830). No document that fits in a row is cut, and of usual corpora far less than a
thousandth of the rows' places stays empty.

A row that is not full ends with a document of its own that has no labels, made of the shard's last token: in our
shards `<|endoftext|>`, elsewhere at least an id of the vocabulary.
"""

import logging
import time
from pathlib import Path

import numpy as np

from glmforge.data.stream.batch import IGNORED_LABEL
from glmforge.data.stream.packing_build import OnProgress, build_packing
from glmforge.data.stream.packing_file import PackingFile, packing_identity, packing_path
from glmforge.data.stream.windows import Window
from glmforge.data.tokens.shards import TokenShard

logger = logging.getLogger(__name__)


class PackedRows:
    """The rows of a stored packing. `RowReader` of `glmforge.data.stream.rows`.

    Args:
        shard: the documents.
        packing: of that shard.
        document_mask: no label lies across a document border, and a row tells its documents apart; else a row is
            one document, whose labels go on across borders (never into the filling).
    """

    def __init__(self, shard: TokenShard, packing: PackingFile, document_mask: bool) -> None:
        self.shard, self.packing, self.document_mask = shard, packing, document_mask
        self.seq_len = packing.counts.seq_len
        self.num_rows = packing.counts.num_rows
        self._filler = int(shard.tokens(shard.num_tokens - 1, shard.num_tokens)[0])

    def __reduce__(self) -> tuple[type["PackedRows"], tuple[TokenShard, PackingFile, bool]]:
        return type(self), (self.shard, self.packing, self.document_mask)

    def row(self, index: int) -> Window:
        ranges = self.describe(index)
        ids = np.full(self.seq_len, self._filler, np.int64)
        ends, end = [], 0
        for start, stop in ranges:
            begin, end = end, end + stop - start
            ids[begin:end] = self.shard.tokens(start, stop)
            ends.append(end)
        labels = np.full(self.seq_len, IGNORED_LABEL, np.int64)
        labels[: end - 1] = ids[1:end]
        if end == self.seq_len and len(ranges) == 1:
            labels[-1] = self._label_after(stop)
        if not self.document_mask:
            return Window(ids, labels, (self.seq_len,))
        labels[np.array(ends[:-1], np.int64) - 1] = IGNORED_LABEL
        return Window(ids, labels, tuple(np.diff(ends + [self.seq_len] * (end < self.seq_len), prepend=0).tolist()))

    def describe(self, index: int) -> list[tuple[int, int]]:
        """Where the row's ids lie in the shard; the filling is not among them."""
        if not 0 <= index < self.num_rows:
            raise IndexError(f"{self.packing.path}: row {index} of {self.num_rows}")
        first, last = self.packing.offsets_R[index : index + 2].tolist()
        starts, lengths = self.packing.starts_P[first:last].tolist(), self.packing.lengths_P[first:last].tolist()
        if not (0 <= first < last <= self.packing.counts.num_pieces and 0 < sum(lengths) <= self.seq_len):
            raise self.packing.damaged()
        if (
            min(lengths) <= 0
            or min(starts) < 0
            or max(map(sum, zip(starts, lengths, strict=True))) > self.shard.num_tokens
        ):
            raise self.packing.damaged()
        return [(start, start + length) for start, length in zip(starts, lengths, strict=True)]

    def _label_after(self, stop: int) -> int:
        """The token at `stop`, if it is of the same document as the one before it. Only full rows end inside one."""
        if stop == self.shard.num_tokens or len(self.shard.document_lengths(stop - 1, stop + 1)) == 2:
            return IGNORED_LABEL
        return int(self.shard.tokens(stop, stop + 1)[0])


def open_packing(
    shard: TokenShard, seq_len: int, *, document_mask: bool = True, packing_dir: Path | None = None
) -> PackedRows:
    """The best-fit rows of `shard`; a packing that is not stored yet is built.

    Raises:
        DataError: the stored packing is cut off or foreign, or none can be written.
    """
    path, identity = _locate(shard, seq_len, packing_dir)
    if not path.exists():
        _build(shard, seq_len, identity, path)
    packing = PackingFile.of(path, identity)
    if (packing.counts.seq_len, packing.counts.num_tokens) != (seq_len, shard.num_tokens):
        raise packing.damaged()
    return PackedRows(shard, packing, document_mask)


def ensure_packing(
    shard: TokenShard, seq_len: int, packing_dir: Path | None = None, *, progress: OnProgress | None = None
) -> PackingFile:
    """Build the packing of `shard` unless it is stored, else read it whole and verify its checksum.

    For one process per directory, before the others open it; two at once do no harm.

    Args:
        shard: documents.
        seq_len: S, tokens per row.
        packing_dir: where to store it; None is beside the shard.
        progress: called with the share of the building that is done; without it, the building is logged.

    Raises:
        DataError: the stored packing is damaged or foreign, or none can be written.
    """
    path, identity = _locate(shard, seq_len, packing_dir)
    if not path.exists():
        _build(shard, seq_len, identity, path, progress)
        return PackingFile.of(path, identity)
    packing = PackingFile.of(path, identity)
    packing.verify()
    return packing


def _locate(shard: TokenShard, seq_len: int, packing_dir: Path | None) -> tuple[Path, bytes]:
    identity = packing_identity(shard, seq_len)
    return packing_path(shard, seq_len, identity, packing_dir), identity


def _build(shard: TokenShard, seq_len: int, identity: bytes, path: Path, progress: OnProgress | None = None) -> None:
    if progress is not None:
        build_packing(shard, seq_len, identity, path, progress)
        return
    logger.info("packing %s into rows of %d tokens", shard.prefix, seq_len)
    started = time.perf_counter()
    counts = build_packing(shard, seq_len, identity, path)
    seconds = time.perf_counter() - started
    logger.info("%s: %d rows, %.3f%% full, %.1f s", path, counts.num_rows, 100 * counts.utilisation, seconds)
