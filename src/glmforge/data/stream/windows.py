"""A shard cut into training rows.

A row of S tokens and their S labels is a window of S + 1 tokens; windows follow each other at a stride of S
over the documents laid end to end, so that every token but the shard's first is a label once. Documents are
cut where a window ends (the report's "random truncation" packing), and a row tells where they begin.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.data.tokens.shards import TokenShard


class Window(NamedTuple):
    """One row: int64 ids and labels [S], and the lengths of the documents in it."""

    ids_S: NDArray[np.int64]
    labels_S: NDArray[np.int64]
    lengths: tuple[int, ...]


def num_windows(shard: TokenShard, seq_len: int) -> int:
    """Whole windows of a shard."""
    return (shard.num_tokens - 1) // seq_len


def read_window(shard: TokenShard, start: int, seq_len: int, document_mask: bool) -> Window:
    """The row that begins at token `start`. With `document_mask`, no label lies across a document border."""
    tokens = shard.tokens(start, start + seq_len + 1).astype(np.int64)
    labels = tokens[1:].copy()
    if not document_mask:
        return Window(tokens[:-1], labels, (seq_len,))
    lengths = shard.document_lengths(start, start + seq_len + 1)
    ends = np.cumsum(lengths)[:-1]  # positions in the window where another document begins
    labels[ends - 1] = IGNORED_LABEL
    inside = np.minimum(np.append(ends, seq_len), seq_len)
    lengths = np.diff(inside, prepend=0)
    return Window(tokens[:-1], labels, tuple(lengths[lengths > 0].tolist()))


def to_batch(windows: Sequence[Window], sample_indices: Sequence[int], sources: Sequence[int]) -> Batch:
    """Windows of one length as a batch on the CPU."""
    return Batch(
        ids_BS=torch.from_numpy(np.stack([window.ids_S for window in windows])),
        labels_BS=torch.from_numpy(np.stack([window.labels_S for window in windows])),
        document_lengths=tuple(window.lengths for window in windows),
        sample_indices=tuple(sample_indices),
        source_B=tuple(sources),
    )
