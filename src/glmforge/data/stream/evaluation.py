"""Held-out text as rows, each token scored at most once, and the bytes of text that the scored tokens stand for.

The shard is cut into rows at a stride of S from its beginning. A subset of this many labels takes rows spread evenly
over all of it: row i of n from N is floor(i N / n), so a shard sorted by subject is not judged by its first one. A
subset of this many samples draws rows by a seed. Either way every rank and every evaluation of a run scores the same
text, on any layout.

A shard with loss weights holds conversations, whose answers are nothing without their questions: there, rows are made
of whole documents in the shard's order, as many as fit, and only tokens that training trains on are scored. A sample
is a document there.

A row that is not full is filled up with tokens that have no label. Bits per byte is
`nll_sum / (ln 2 * num_bytes)`; unlike the loss per token it does not depend on the tokenizer, so models with
different vocabularies can be compared by it.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.data.stream.order import permute, stream_key
from glmforge.data.stream.packing_build import document_stretches
from glmforge.data.stream.single import join_ranges
from glmforge.data.stream.windows import Window, read_window, to_batch
from glmforge.data.tokens.shards import TokenShard, check_ids
from glmforge.errors import DataError


class DrawnSamples(NamedTuple):
    """A subset of `number` samples, or all if there are fewer, that `seed` draws."""

    number: int
    seed: int

    def of(self, num_samples: int) -> NDArray[np.int64]:
        """Which of this many samples are drawn, ascending. A larger `number` adds to those of a smaller one."""
        places = np.arange(min(self.number, num_samples))
        return np.sort(permute(places, num_samples, stream_key("evaluation", self.seed)))


Subset = int | DrawnSamples | None
"""What of a shard is scored: at most this many labels, spread over it; samples that are drawn; or, None, all."""


@dataclass(frozen=True)
class EvaluationBatch:
    """Rows to score, and how many bytes of text their labels stand for (special tokens: none)."""

    batch: Batch
    num_bytes: int


class EvaluationBatches:
    """The evaluation subset of a shard; `batches[k]` is read when it is requested.

    Args:
        shard: held-out text.
        seq_len: S, tokens per row.
        subset: what of it is scored.
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
        subset: Subset,
        token_byte_lengths: NDArray[np.int64],
        *,
        rows_per_batch: int = 1,
        document_mask: bool = True,
        source: int = 0,
    ) -> None:
        self.shard, self.source = shard, source
        self._byte_lengths, self._rows_per_batch = token_byte_lengths, rows_per_batch
        if shard.num_tokens < 2:
            raise DataError(f"{shard.prefix}: {shard.num_tokens} tokens are too few to evaluate; hold out more text")
        self._rows: _Rows
        if shard.loss is None:
            self._rows = _Stretches(shard, seq_len, subset, document_mask)
        else:
            self._rows = _WholeDocuments(shard, seq_len, subset, document_mask)
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
    """Rows at a stride of S. Of labels spread evenly the last row has as many as are left."""

    def __init__(self, shard: TokenShard, seq_len: int, subset: Subset, document_mask: bool) -> None:
        self._shard, self._seq_len, self._document_mask = shard, seq_len, document_mask
        num_labels = shard.num_tokens - 1
        rows_of_shard = -(-num_labels // seq_len)
        if isinstance(subset, DrawnSamples):
            rows = subset.of(rows_of_shard)
        else:
            num_labels = num_labels if subset is None else min(subset, num_labels)
            num_rows = -(-num_labels // seq_len)
            rows = np.arange(num_rows) * rows_of_shard // num_rows
        self._starts, self.num_rows = rows * seq_len, len(rows)
        self._lengths = np.minimum(seq_len, shard.num_tokens - 1 - self._starts)
        if not isinstance(subset, DrawnSamples):
            self._lengths[-1] = num_labels - seq_len * (self.num_rows - 1)

    def ranges(self, row: int) -> list[tuple[int, int]]:
        start = int(self._starts[row])
        return [(start, start + int(self._lengths[row]))]

    def window(self, row: int) -> Window:
        ((start, stop),) = self.ranges(row)
        return _filled(read_window(self._shard, start, stop - start, self._document_mask), self._seq_len)


class _WholeDocuments:
    """Rows of consecutive documents, each as many as fit; one that is longer than a row is cut into rows of its own.

    Documents that are drawn are put into rows as if there were no others.
    """

    def __init__(self, shard: TokenShard, seq_len: int, subset: Subset, document_mask: bool) -> None:
        self._shard, self._seq_len, self._document_mask = shard, seq_len, document_mask
        starts, lengths = (np.concatenate(parts) for parts in zip(*document_stretches(shard), strict=True))
        if isinstance(subset, DrawnSamples):
            drawn = subset.of(len(starts))
            starts, lengths = starts[drawn], lengths[drawn]
        self._all: list[list[tuple[int, int]]] = []
        room = 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            for first in range(start, start + length, seq_len):
                stop = min(first + seq_len, start + length)
                if stop - first > room:
                    self._all.append([])
                    room = seq_len
                self._all[-1].append((first, stop))
                room -= stop - first
        most = max(1, subset // seq_len) if isinstance(subset, int) else len(self._all)
        self.num_rows = min(len(self._all), most)

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
