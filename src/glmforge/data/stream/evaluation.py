"""Held-out text in order, each token scored once, and the bytes of text that the scored tokens stand for.

Unlike training, evaluation reads the shard from its beginning to its end; a last window that is not full is
filled up with tokens that have no label. Bits per byte is `nll_sum / (ln 2 * num_bytes)`; unlike the loss per
token it does not depend on the tokenizer, so models with different vocabularies can be compared by it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.data.stream.windows import Window, read_window, to_batch
from glmforge.data.tokens.shards import TokenShard, check_ids


@dataclass(frozen=True)
class EvaluationBatch:
    """Rows to score, and how many bytes of text their labels stand for (special tokens: none)."""

    batch: Batch
    num_bytes: int


def evaluation_windows(
    shard: TokenShard,
    seq_len: int,
    max_tokens: int,
    token_byte_lengths: NDArray[np.int64],
    *,
    batch_size: int = 1,
    document_mask: bool = True,
) -> Iterator[EvaluationBatch]:
    """The first `max_tokens` tokens of a shard as rows of `seq_len`; the same rows at every call.

    Args:
        shard: held-out text.
        seq_len: S, tokens per row.
        max_tokens: at most so many labels are scored; fewer if the shard is shorter.
        token_byte_lengths: bytes per token id, of `glmforge.data.tokens.tokenizer.token_byte_lengths`.
        batch_size: rows per batch; the last batch may have fewer.
        document_mask: as in training; the first token of a document is then never scored.

    Raises:
        DataError: the shard holds an id that the tokenizer does not have.
    """
    num_labels = min(max_tokens, shard.num_tokens - 1)
    starts = range(0, num_labels, seq_len)
    for first in range(0, len(starts), batch_size):
        windows = []
        for start in starts[first : first + batch_size]:
            length = min(seq_len, num_labels - start)
            check_ids(shard.tokens(start, start + length + 1), len(token_byte_lengths), shard.prefix, start)
            windows.append(_filled(read_window(shard, start, length, document_mask), seq_len))
        indices = range(first, first + len(windows))
        scored = np.concatenate([window.labels_S[window.labels_S != IGNORED_LABEL] for window in windows])
        batch = to_batch(windows, indices, [0] * len(windows))
        yield EvaluationBatch(batch, int(token_byte_lengths[scored].sum()))


def _filled(window: Window, seq_len: int) -> Window:
    """Padded to `seq_len` with a document of its own that has no labels."""
    missing = seq_len - len(window.ids_S)
    if missing == 0:
        return window
    return Window(
        np.pad(window.ids_S, (0, missing)),
        np.pad(window.labels_S, (0, missing), constant_values=IGNORED_LABEL),
        (*window.lengths, missing),
    )
