"""Rows of whole documents: best-fit packing, computed once, stored and read.

A document of more than S tokens is cut into pieces of S; what remains of it, and every shorter document, is one
piece, and the pieces are packed by best-fit-decreasing (Ding et al., "Fewer Truncations Improve Language
Modeling", 2024, arXiv:2404.10830). No document that fits in a row is cut, and of usual corpora far less than a
thousandth of the rows' places stays empty.
"""

import logging
import time
from pathlib import Path

from glmforge.data.stream.packing_build import OnProgress, build_packing
from glmforge.data.stream.packing_file import PackingFile, packing_identity, packing_path
from glmforge.data.stream.single import join_ranges
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

    def __reduce__(self) -> tuple[type["PackedRows"], tuple[TokenShard, PackingFile, bool]]:
        return type(self), (self.shard, self.packing, self.document_mask)

    def row(self, index: int) -> Window:
        return join_ranges(self.shard, self.describe(index), self.seq_len, document_mask=self.document_mask)

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
    logger.info("packing %s into rows of %s tokens", shard.prefix, f"{seq_len:,}")
    started = time.perf_counter()
    counts = build_packing(shard, seq_len, identity, path)
    seconds = time.perf_counter() - started
    logger.debug("%s: %d rows, %.3f%% full, %.1f s", path, counts.num_rows, 100 * counts.utilisation, seconds)
