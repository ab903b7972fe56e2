"""The data of one training phase, as a function of the sample's number.

Sample i of a phase is decided by the seed, the phase's record of mixtures and i, and by nothing else. The mixture in
force at i says which source it comes from and which number on that source's track it is; that number, divided by the
source's rows, is an epoch and a place in it, and each epoch visits every row once, in an order of its own. No state
is kept and nothing grows with the data, so any rank or reading process can make any batch, and a run resumes from the
number of samples it has consumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.data.stream.fim import FimTokens, rearrange
from glmforge.data.stream.order import permute, stream_key
from glmforge.data.stream.record import PhaseRecord
from glmforge.data.stream.rows import RowReader
from glmforge.data.stream.windows import Window, to_batch
from glmforge.data.tokens.shards import TokenShard, check_ids
from glmforge.errors import DataError


class FimRule(NamedTuple):
    """Rearrange documents with probability `rate`."""

    rate: float
    special: FimTokens
    end_of_text: int


@dataclass(frozen=True)
class PhaseSource:
    """A source as one phase reads it. `index` is its place in the run's `data.sources`.

    Its name is part of the order: under another name it is shuffled differently.
    """

    name: str
    index: int
    shard: TokenShard
    rows: RowReader
    fim: FimRule | None = None


class Place(NamedTuple):
    """Where a sample comes from: the `row` of a source, in its order of `epoch`; `number` counts along the track."""

    source: str
    number: int
    epoch: int
    row: int


class PhaseStream:
    """The samples 0, 1, 2, ... of a phase.

    Args:
        record: the phase's mixtures.
        sources: by name, those that `record` draws from. A source that is gone may be missing; its samples are then
            an error.
        seed: of the run.
        vocab_size: of the model; a token id beyond it is an error.
    """

    def __init__(self, record: PhaseRecord, sources: Mapping[str, PhaseSource], *, seed: int, vocab_size: int) -> None:
        self.record, self.sources = record, dict(sources)
        self.seed, self.vocab_size = seed, vocab_size
        self.seq_len = record.seq_len

    def sample(self, index: int) -> Window:
        """Ids, labels and document lengths of one sample."""
        (place,) = self.locate([index])
        return self._window(place)

    def batch(self, first: int, size: int, rank: int = 0, world: int = 1) -> Batch:
        """The rank-th of `world` equal slices of samples [first, first + size).

        Raises:
            DataError: `world` does not divide the batch, or a shard holds an id that the model does not have.
        """
        share, rest = divmod(size, world)
        if rest:
            raise DataError(
                f"batch_size {size}: cannot be divided over {world} data ranks; choose a multiple of {world}"
            )
        indices = range(first + rank * share, first + (rank + 1) * share)
        places = self.locate(indices)
        windows = [self._window(place) for place in places]
        return to_batch(windows, indices, [self.sources[place.source].index for place in places])

    def locate(self, indices: Sequence[int]) -> list[Place]:
        """Where samples come from.

        Raises:
            DataError: one comes from a source that the configuration no longer has.
        """
        numbers = [self.record.entry_of(index).locate(index) for index in indices]
        sizes = [self._source(name).rows.num_rows for name, _ in numbers]
        epochs = [divmod(number, size) for (_, number), size in zip(numbers, sizes, strict=True)]
        keys = [self._key("order", name, epoch) for (name, _), (epoch, _) in zip(numbers, epochs, strict=True)]
        rows = permute([place for _, place in epochs], sizes, np.array(keys, dtype=np.uint64)).tolist()
        return [
            Place(name, number, epoch, row)
            for (name, number), (epoch, _), row in zip(numbers, epochs, rows, strict=True)
        ]

    def _key(self, purpose: str, name: str, number: int) -> int:
        """Not of the phase: phases that read a source alike continue in one order."""
        return stream_key(self.seed, purpose, name, self.record.seq_len, self.record.packing, number)

    def _source(self, name: str) -> PhaseSource:
        if name not in self.sources:
            raise DataError(f"source '{name}': was consumed, but is missing from data.sources; restore it")
        return self.sources[name]

    def _window(self, place: Place) -> Window:
        source = self.sources[place.source]
        window = source.rows.row(place.row)
        if not (_are_ids(window.ids_S, self.vocab_size) and _are_labels(window.labels_S, self.vocab_size)):
            for start, stop in source.rows.describe(place.row):
                last = min(stop + 1, source.shard.num_tokens)
                check_ids(source.shard.tokens(start, last), self.vocab_size, source.shard.prefix, start)
        if source.fim is None:
            return window
        return rearrange(window, key=self._key("fim", place.source, place.number), **source.fim._asdict())


def _are_ids(ids_S: NDArray[np.int64], vocab_size: int) -> bool:
    return 0 <= int(ids_S.min()) <= int(ids_S.max()) < vocab_size


def _are_labels(labels_S: NDArray[np.int64], vocab_size: int) -> bool:
    return _are_ids(np.where(labels_S == IGNORED_LABEL, 0, labels_S), vocab_size)
