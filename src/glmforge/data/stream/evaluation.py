"""Held-out text as rows, each token scored at most once, and the bytes of text that the scored tokens stand for.

The shard is cut into rows at a stride of S from its beginning. If it has more tokens than are to be scored, rows
spread evenly over all of it are taken: row i of n from N is floor(i N / n), so every rank and every evaluation of a
run scores the same text, and a shard sorted by subject is not judged by its first one.

A last row that is not full is filled up with tokens that have no label. Bits per byte is
`nll_sum / (ln 2 * num_bytes)`; unlike the loss per token it does not depend on the tokenizer, so models with
different vocabularies can be compared by it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.data.stream.windows import Window, read_window, to_batch
from glmforge.data.tokens.shards import TokenShard, check_ids
from glmforge.errors import DataError


@dataclass(frozen=True)
class EvaluationBatch:
    """Rows to score, and how many bytes of text their labels stand for (special tokens: none)."""

    batch: Batch
    num_bytes: int


class EvaluationBatches:
    """The evaluation subset of a shard; `batches[k]` is read when it is asked for.

    Args:
        shard: held-out text.
        seq_len: S, tokens per row.
        max_tokens: at most so many labels are scored; fewer if the shard is shorter.
        token_byte_lengths: bytes per token id, of `glmforge.data.tokens.tokenizer.token_byte_lengths`.
        rows_per_batch: the last batch may have fewer.
        document_mask: as in training; the first token of a document is then never scored.
        source: index of the shard among those that are evaluated, for the batches' `source_B`.

    Raises:
        DataError: the shard has no token to predict; or, on reading, an id that the tokenizer does not have.
    """

    def __init__(
        self,
        shard: TokenShard,
        seq_len: int,
        max_tokens: int,
        token_byte_lengths: NDArray[np.int64],
        *,
        rows_per_batch: int = 1,
        document_mask: bool = True,
        source: int = 0,
    ) -> None:
        self.shard, self.seq_len, self.source = shard, seq_len, source
        self._byte_lengths, self._document_mask = token_byte_lengths, document_mask
        self._rows_per_batch = rows_per_batch
        self._num_labels = min(max_tokens, shard.num_tokens - 1)
        if self._num_labels < 1:
            raise DataError(f"{shard.prefix}: {shard.num_tokens} tokens leave none to predict; hold out more text")
        self.num_rows = -(-self._num_labels // seq_len)

    def __len__(self) -> int:
        return -(-self.num_rows // self._rows_per_batch)

    def __getitem__(self, index: int) -> EvaluationBatch:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.shard.prefix}: evaluation batch {index} of {len(self)}")
        first = index * self._rows_per_batch
        rows = range(first, min(first + self._rows_per_batch, self.num_rows))
        windows = [self._window(row) for row in rows]
        scored = np.concatenate([window.labels_S[window.labels_S != IGNORED_LABEL] for window in windows])
        batch = to_batch(windows, rows, [self.source] * len(windows))
        return EvaluationBatch(batch, int(self._byte_lengths[scored].sum()))

    def _window(self, row: int) -> Window:
        rows_of_shard = -(-(self.shard.num_tokens - 1) // self.seq_len)
        start = row * rows_of_shard // self.num_rows * self.seq_len
        length = min(self.seq_len, self._num_labels - row * self.seq_len)
        check_ids(self.shard.tokens(start, start + length + 1), len(self._byte_lengths), self.shard.prefix, start)
        return _filled(read_window(self.shard, start, length, self._document_mask), self.seq_len)


def _filled(window: Window, seq_len: int) -> Window:
    """Padded to `seq_len` with a document of its own that has no labels."""
    missing = seq_len - len(window.ids_S)
    if missing == 0:
        return window
    return Window(
        np.pad(window.ids_S, (0, missing)),
        np.pad(window.labels_S, (0, missing), constant_values=IGNORED_LABEL),
        (*window.lengths, missing),
        None if window.weights_S is None else np.pad(window.weights_S, (0, missing)),
    )
