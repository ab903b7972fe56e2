"""The rows of a shard: by which rule its documents become sequences of S tokens.

Three rules exist (`PhaseConfig.packing`): `truncate` cuts the stream of documents every S tokens
(`glmforge.data.stream.windows`), `best_fit` cuts only documents that are longer than a row and packs whole ones
(`glmforge.data.stream.packing`), `single` gives each document a row of its own (`glmforge.data.stream.single`).
Code that draws samples sees only the number of rows and their contents.
"""

from pathlib import Path
from typing import Literal, Protocol

from glmforge.data.stream.packing import open_packing
from glmforge.data.stream.single import SingleRows
from glmforge.data.stream.windows import Window, num_windows, read_window
from glmforge.data.tokens.shards import TokenShard

Packing = Literal["truncate", "best_fit", "single"]
TokenRange = tuple[int, int]
"""Tokens [start, stop) of a shard, its documents laid end to end."""


class RowReader(Protocol):
    """The rows 0 ... num_rows - 1 of one shard. Pickles as paths: a reading process maps the files itself."""

    @property
    def num_rows(self) -> int: ...

    def row(self, index: int) -> Window:
        """Ids, labels and document lengths of one row."""
        ...

    def describe(self, index: int) -> list[TokenRange]:
        """Where the row's ids lie in the shard, in the row's order; filling is not among them."""
        ...


def open_rows(
    shard: TokenShard, *, seq_len: int, packing: Packing, document_mask: bool, packing_dir: Path | None = None
) -> RowReader:
    """The rows of `shard` under a packing rule.

    Args:
        shard: documents.
        seq_len: S, tokens per row.
        packing: the rule; a best-fit packing that is not stored yet is computed and stored first, so in a run of
            several ranks the lead calls `packing.ensure_packing` before the others come here.
        document_mask: no label lies across a document border, and the row tells its documents apart.
        packing_dir: where packings are stored; None is beside the shard.

    Raises:
        DataError: the stored packing is damaged or of another shard, or cannot be stored; a document is too long for
            a row of its own.
    """
    if packing == "truncate":
        return TruncatedRows(shard, seq_len, document_mask)
    if packing == "single":
        return SingleRows(shard, seq_len, document_mask)
    return open_packing(shard, seq_len, document_mask=document_mask, packing_dir=packing_dir)


class TruncatedRows:
    """Windows at a stride of S over the documents laid end to end."""

    def __init__(self, shard: TokenShard, seq_len: int, document_mask: bool) -> None:
        self.shard, self.seq_len, self.document_mask = shard, seq_len, document_mask
        self.num_rows = num_windows(shard, seq_len)

    def row(self, index: int) -> Window:
        if not 0 <= index < self.num_rows:
            raise IndexError(f"{self.shard.prefix}: row {index} of {self.num_rows}")
        return read_window(self.shard, index * self.seq_len, self.seq_len, self.document_mask)

    def describe(self, index: int) -> list[TokenRange]:
        return [(index * self.seq_len, (index + 1) * self.seq_len)]
