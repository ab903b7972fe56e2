"""The data of one training phase, as a function of the sample's number.

Sample i of a phase is decided by (seed, phase, i) and nothing else. The mixture says which source it comes
from and which of that source's samples it is; that number, divided by the source's windows, is an epoch and a
place in it, and each epoch visits every window once, in an order of its own. No state is kept and nothing
grows with the data, so any rank or reading process can make any batch, and a run resumes from the number of
samples it has consumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glmforge.data.stream.batch import Batch
from glmforge.data.stream.mixture import Mixture
from glmforge.data.stream.order import permute, stream_key
from glmforge.data.stream.windows import Window, num_windows, read_window, to_batch
from glmforge.data.tokens.shards import TokenShard, check_ids
from glmforge.errors import DataError


@dataclass(frozen=True)
class Source:
    """A shard to draw from. Its name is part of the order: under another name it is shuffled anew."""

    name: str
    shard: TokenShard
    weight: float = 1.0


class PhaseStream:
    """The samples 0, 1, 2, ... of a phase.

    Args:
        sources: shards and their weights, which are shares of the sequences.
        seq_len: S, tokens per sample.
        batch_size: samples per optimizer step, all ranks together.
        vocab_size: of the model; a token id beyond it is an error.
        document_mask: whether labels and attention stop at document borders.
        seed: of the run.
        phase_index: of the phase in the run.

    Raises:
        DataError: a source is shorter than one window, or two have one name.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        seq_len: int,
        batch_size: int,
        vocab_size: int,
        document_mask: bool = True,
        seed: int = 0,
        phase_index: int = 0,
    ) -> None:
        self.sources = tuple(sources)
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.vocab_size = vocab_size
        self.document_mask = document_mask
        self.seed = seed
        self.phase_index = phase_index
        self._mixture = Mixture([source.weight for source in sources])
        self._num_windows = [num_windows(source.shard, seq_len) for source in sources]
        self._check_sources()

    def sample(self, index: int) -> Window:
        """Ids, labels and document lengths of one sample."""
        _, (window,) = self._read([index])
        return window

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The rank-th of `world` equal slices of samples [step * batch_size, (step + 1) * batch_size).

        Raises:
            DataError: `world` does not divide the batch, or a shard holds an id that the model does not have.
        """
        share, rest = divmod(self.batch_size, world)
        if rest:
            raise DataError(
                f"batch_size {self.batch_size}: cannot be shared by {world} data ranks; choose a multiple of {world}"
            )
        first = step * self.batch_size + rank * share
        indices = range(first, first + share)
        sources, windows = self._read(indices)
        return to_batch(windows, indices, sources)

    def fingerprint(self) -> dict[str, Any]:
        """What the samples depend on, as JSON's types. Equal fingerprints, equal samples."""
        return {
            "seed": self.seed,
            "phase": self.phase_index,
            "seq_len": self.seq_len,
            "document_mask": self.document_mask,
            "sources": [
                {"name": source.name, "weight": source.weight, **source.shard.identity()} for source in self.sources
            ],
        }

    def _read(self, indices: Sequence[int]) -> tuple[list[int], list[Window]]:
        sources, places, sizes, keys = [], [], [], []
        for source, number in map(self._mixture.locate, indices):
            size = self._num_windows[source]
            epoch, place = divmod(number, size)
            sources.append(source)
            places.append(place)
            sizes.append(size)
            keys.append(stream_key(self.seed, self.phase_index, self.sources[source].name, epoch))
        chosen = permute(places, sizes, np.array(keys, dtype=np.uint64)).tolist()
        return sources, [self._window(source, window) for source, window in zip(sources, chosen, strict=True)]

    def _window(self, source: int, window: int) -> Window:
        shard = self.sources[source].shard
        start = window * self.seq_len
        check_ids(shard.tokens(start, start + self.seq_len + 1), self.vocab_size, shard.prefix, start)
        return read_window(shard, start, self.seq_len, self.document_mask)

    def _check_sources(self) -> None:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise DataError(f"data sources {', '.join(names)}: two have one name; give each its own")
        for source, count in zip(self.sources, self._num_windows, strict=True):
            if count == 0:
                raise DataError(
                    f"source '{source.name}' ({source.shard.prefix}): {source.shard.num_tokens:,} tokens are "
                    f"too few for one sequence of seq_len {self.seq_len} and its last label; give more text "
                    "or a smaller seq_len"
                )
