"""Rows made of whole stretches of a shard, and the rule by which each document has a row of its own.

A row that is not full ends with a document of its own that has no labels, made of the shard's last token: in shards of
text `<|endoftext|>`, elsewhere at least an id of the vocabulary.

A row for each document wastes what packing saves. It is for those who want to compare: the loss of packed rows is the
same, since neither attention nor labels cross a document's border.
"""

from collections.abc import Sequence

import numpy as np

from glmforge.data.stream.batch import IGNORED_LABEL
from glmforge.data.stream.packing_build import document_stretches
from glmforge.data.stream.windows import Window, with_weights
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import DataError


class SingleRows:
    """One document a row. `RowReader` of `glmforge.data.stream.rows`.

    Args:
        shard: the documents.
        seq_len: S, tokens per row.
        document_mask: filling is a document of its own; else the row is one document.

    Raises:
        DataError: a document is longer than a row.
    """

    def __init__(self, shard: TokenShard, seq_len: int, document_mask: bool) -> None:
        self.shard, self.seq_len, self.document_mask = shard, seq_len, document_mask
        self.num_rows = shard.num_documents
        for starts, lengths in document_stretches(shard):
            if lengths.max() > seq_len:
                longest = int(lengths.argmax())
                raise DataError(
                    f"{shard.prefix}: document {shard.document_at(int(starts[longest])):,} has {lengths[longest]:,} "
                    f"tokens, more than seq_len {seq_len:,}; raise seq_len, set packing to best_fit, or write the "
                    "shard with a length limit"
                )

    def __reduce__(self) -> tuple[type["SingleRows"], tuple[TokenShard, int, bool]]:
        return type(self), (self.shard, self.seq_len, self.document_mask)

    def row(self, index: int) -> Window:
        return join_ranges(self.shard, self.describe(index), self.seq_len, document_mask=self.document_mask)

    def describe(self, index: int) -> list[tuple[int, int]]:
        if not 0 <= index < self.num_rows:
            raise IndexError(f"{self.shard.prefix}: row {index} of {self.num_rows}")
        return [self.shard.document_range(index)]


def join_ranges(
    shard: TokenShard, ranges: Sequence[tuple[int, int]], seq_len: int, *, document_mask: bool = True
) -> Window:
    """A row of these stretches of tokens, each at most one document, filled up to `seq_len`.

    With `document_mask` no label lies across a border, and the row tells its documents apart; else it is one document,
    whose labels go on across borders (never into the filling).
    """
    # One place more than the row has: for the label of a full row's last token.
    ids = np.repeat(shard.tokens(shard.num_tokens - 1, shard.num_tokens).astype(np.int64), seq_len + 1)
    weights = np.zeros(seq_len + 1, np.float32)
    sums_D = None if shard.loss is None else shard.loss.sums_D
    sums = None if sums_D is None else np.zeros(seq_len + 1, np.float32)
    ends, end = [], 0
    for start, stop in [*ranges, *_following(shard, ranges, seq_len)]:
        begin, end = end, end + stop - start
        ids[begin:end] = shard.tokens(start, stop)
        if shard.loss is not None:
            weights[begin:end] = shard.loss.read(start, stop)
        if sums is not None and sums_D is not None:
            sums[begin:end] = sums_D[shard.document_at(start)]
        ends.append(end)
    labels = np.full(seq_len, IGNORED_LABEL, np.int64)
    labels[: max(end - 1, 0)] = ids[1:end]
    ends = [place for place in ends[: len(ranges)] if place]
    lengths: tuple[int, ...] = (seq_len,)
    if document_mask:
        labels[np.array([place for place in ends if place < min(end, seq_len)], np.int64) - 1] = IGNORED_LABEL
        lengths = tuple(np.diff([*ends, *([seq_len] if ends[-1:] != [seq_len] else [])], prepend=0).tolist())
    window = Window(ids[:-1], labels, lengths, sums_S=None if sums is None else sums[:-1])
    return window if shard.loss is None else with_weights(window, weights[1:], is_mask=shard.loss.is_mask)


def _following(shard: TokenShard, ranges: Sequence[tuple[int, int]], seq_len: int) -> list[tuple[int, int]]:
    """The token after a full row of one stretch, if it is of the same document: what the row's last token is asked."""
    start, stop = ranges[0]
    is_full = len(ranges) == 1 and stop - start == seq_len
    if not is_full or stop == shard.num_tokens or len(shard.document_lengths(stop - 1, stop + 1)) == 2:
        return []
    return [(stop, stop + 1)]
