"""A shard cut into training rows.

A row of S tokens and their S labels is a window of S + 1 tokens; windows follow each other at a stride of S
over the documents laid end to end, so that every token but the shard's first is a label once. Documents are
cut where a window ends (the report's "random truncation" packing), and a row tells where they begin.

Where the shard has loss weights, the weight of a label is that of the token it asks for; a label of weight 0 is none.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.data.tokens.shards import TokenShard


class Window(NamedTuple):
    """One row: int64 ids and labels [S], the lengths of the documents in it, and what each label weighs.

    `weights_S` is float32, 0 where there is no label; None where all labels weigh 1. `sums_S` is float32, what the
    weights of the conversation that a token belongs to add up to, over all of its documents; 0 where that is not known,
    None where it is of no token.
    """

    ids_S: NDArray[np.int64]
    labels_S: NDArray[np.int64]
    lengths: tuple[int, ...]
    weights_S: NDArray[np.float32] | None = None
    sums_S: NDArray[np.float32] | None = None


def num_windows(shard: TokenShard, seq_len: int) -> int:
    """Whole windows of a shard."""
    return (shard.num_tokens - 1) // seq_len


def read_window(shard: TokenShard, start: int, seq_len: int, document_mask: bool) -> Window:
    """The row that begins at token `start`. With `document_mask`, no label lies across a document border."""
    tokens = shard.tokens(start, start + seq_len + 1).astype(np.int64)
    labels = tokens[1:].copy()
    if not document_mask:
        return _weighted(Window(tokens[:-1], labels, (seq_len,)), shard, start)
    lengths = shard.document_lengths(start, start + seq_len + 1)
    ends = np.cumsum(lengths)[:-1]  # positions in the window where another document begins
    labels[ends - 1] = IGNORED_LABEL
    inside = np.minimum(np.append(ends, seq_len), seq_len)
    lengths = np.diff(inside, prepend=0)
    return _weighted(Window(tokens[:-1], labels, tuple(lengths[lengths > 0].tolist())), shard, start)


def _weighted(window: Window, shard: TokenShard, start: int) -> Window:
    if shard.loss is None:
        return window
    weights = shard.loss.read(start + 1, start + 1 + len(window.labels_S))
    return with_weights(window, weights, is_mask=shard.loss.is_mask)


def with_weights(window: Window, weights_S: NDArray[np.float32], *, is_mask: bool) -> Window:
    """The row whose labels weigh `weights_S`, which are all 0 or 1 if `is_mask`."""
    labels = np.where(weights_S == 0, IGNORED_LABEL, window.labels_S)
    weights = None if is_mask else np.where(labels == IGNORED_LABEL, np.float32(0), weights_S)
    return window._replace(labels_S=labels, weights_S=weights)


def to_batch(windows: Sequence[Window], sample_indices: Sequence[int], sources: Sequence[int]) -> Batch:
    """Windows of one length as a batch on the CPU, with `per_token["loss_weight"]` if a window has weights, and
    `per_token["conversation_sum"]` if one has sums."""
    per_token: dict[str, torch.Tensor] = {}
    if any(window.weights_S is not None for window in windows):
        per_token["loss_weight"] = torch.from_numpy(np.stack(list(map(_label_weights, windows))))
    if any(window.sums_S is not None for window in windows):
        sums = [np.zeros(len(w.ids_S), np.float32) if w.sums_S is None else w.sums_S for w in windows]
        per_token["conversation_sum"] = torch.from_numpy(np.stack(sums))
    return Batch(
        ids_BS=torch.from_numpy(np.stack([window.ids_S for window in windows])),
        labels_BS=torch.from_numpy(np.stack([window.labels_S for window in windows])),
        document_lengths=tuple(window.lengths for window in windows),
        sample_indices=tuple(sample_indices),
        source_B=tuple(sources),
        per_token=per_token,
    )


def _label_weights(window: Window) -> NDArray[np.float32]:
    return (window.labels_S != IGNORED_LABEL).astype(np.float32) if window.weights_S is None else window.weights_S
