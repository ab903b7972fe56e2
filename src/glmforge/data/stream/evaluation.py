"""Held-out text as rows, each token scored at most once, and the bytes of text that the scored tokens stand for.

The shard is cut into rows at a stride of S from its beginning. If it has more tokens than are to be scored, rows
spread evenly over all of it are taken: row i of n from N is floor(i N / n), so every rank and every evaluation of a
run scores the same text, and a shard sorted by subject is not judged by its first one.

A shard with loss weights holds conversations, whose answers are nothing without their questions: there, rows are made
of whole documents in the shard's order, as many as fit, and only what is learnt in training is scored.

A row that is not full is filled up with tokens that have no label. Bits per byte is
`nll_sum / (ln 2 * num_bytes)`; unlike the loss per token it does not depend on the tokenizer, so models with
different vocabularies can be compared by it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.data.stream.packing_build import document_stretches
from glmforge.data.stream.single import join_ranges
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
        self.shard, self.source = shard, source
        self._byte_lengths, self._rows_per_batch = token_byte_lengths, rows_per_batch
        if shard.num_tokens < 2:
            raise DataError(f"{shard.prefix}: {shard.num_tokens} tokens leave none to predict; hold out more text")
        self._rows: _Rows
        if shard.loss is None:
            self._rows = _Stretches(shard, seq_len, max_tokens, document_mask)
        else:
            self._rows = _WholeDocuments(shard, seq_len, max_tokens, document_mask)
        self.num_rows = self._rows.num_rows

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
        for start, stop in self._rows.ranges(row):
            last = min(stop + 1, self.shard.num_tokens)
            check_ids(self.shard.tokens(start, last), len(self._byte_lengths), self.shard.prefix, start)
        return self._rows.window(row)


class _Rows(Protocol):
    """The rows that are scored."""

    num_rows: int

    def ranges(self, row: int) -> list[tuple[int, int]]:
        """The tokens [start, stop) of the shard that it has, in its order."""
        ...

    def window(self, row: int) -> Window: ...


class _Stretches:
    """Rows at a stride of S, the last one as long as the labels asked for."""

    def __init__(self, shard: TokenShard, seq_len: int, max_tokens: int, document_mask: bool) -> None:
        self._shard, self._seq_len, self._document_mask = shard, seq_len, document_mask
        self._num_labels = min(max_tokens, shard.num_tokens - 1)
        self.num_rows = -(-self._num_labels // seq_len)

    def ranges(self, row: int) -> list[tuple[int, int]]:
        rows_of_shard = -(-(self._shard.num_tokens - 1) // self._seq_len)
        start = row * rows_of_shard // self.num_rows * self._seq_len
        return [(start, start + min(self._seq_len, self._num_labels - row * self._seq_len))]

    def window(self, row: int) -> Window:
        ((start, stop),) = self.ranges(row)
        return _filled(read_window(self._shard, start, stop - start, self._document_mask), self._seq_len)


class _WholeDocuments:
    """Rows of consecutive documents, each as many as fit; one that is longer than a row is cut into rows of its own."""

    def __init__(self, shard: TokenShard, seq_len: int, max_tokens: int, document_mask: bool) -> None:
        self._shard, self._seq_len, self._document_mask = shard, seq_len, document_mask
        self._all: list[list[tuple[int, int]]] = []
        room = 0
        for starts, lengths in document_stretches(shard):
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                for first in range(start, start + length, seq_len):
                    stop = min(first + seq_len, start + length)
                    if stop - first > room:
                        self._all.append([])
                        room = seq_len
                    self._all[-1].append((first, stop))
                    room -= stop - first
        self.num_rows = min(len(self._all), max(1, max_tokens // seq_len))

    def ranges(self, row: int) -> list[tuple[int, int]]:
        return self._all[row * len(self._all) // self.num_rows]

    def window(self, row: int) -> Window:
        return join_ranges(self._shard, self.ranges(row), self._seq_len, document_mask=self._document_mask)


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
