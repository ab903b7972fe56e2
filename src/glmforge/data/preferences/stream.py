"""Pairs packed in rows, in an order that is a function of (seed, epoch): what a phase of preferences reads.

A row has a twin: rows 2i and 2i + 1 of a batch hold the chosen and the rejected answers of the same pairs, the j-th
document of one belongs to the j-th of the other, and both end with a filling of at least one token, so that they have
equally many documents. A pair is put where both of its sides fit and least room is left, the longest first (best-fit
decreasing over the rows that were begun last). Rows are packed once for each source; an epoch visits all of them once.

Shapes: P pairs of all sources, R pairs of rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glmforge.data.preferences.pairs import PairArrays
from glmforge.data.stream.batch import IGNORED_LABEL, Batch, PackedDocument, pack
from glmforge.data.stream.order import permute, stream_key
from glmforge.errors import DataError

PAIR = "pair"
"""In `Batch.per_token`, int64: at the last token of an answer the number of its pair, from 1; elsewhere 0."""

MARGIN = "margin"
"""In `Batch.per_token`, float32: at the last token of an answer the margin of its pair."""

REFERENCE = "reference_logprob"
"""In `Batch.per_token`, float32: at the last token of an answer the reference's log-probability of it."""

_OPEN_ROWS = 256


def pack_pairs(lengths_P2: NDArray[np.int64], seq_len: int) -> list[list[int]]:
    """Numbers of the pairs of each pair of rows. No side may be longer than `seq_len - 1`."""
    rows: list[list[int]] = []
    rooms_W2 = np.zeros((0, 2), np.int64)  # of the last W rows
    for pair in np.argsort(-lengths_P2.max(1), kind="stable").tolist():
        left_W = (rooms_W2 - lengths_P2[pair]).min(1) if len(rooms_W2) else np.zeros(0, np.int64)
        fits_W = left_W >= 0
        if fits_W.any():
            row = int(np.where(fits_W, left_W, np.iinfo(np.int64).max).argmin())
            rows[len(rows) - len(rooms_W2) + row].append(pair)
        else:
            rows.append([pair])
            rooms_W2 = np.concatenate([rooms_W2, np.full((1, 2), seq_len - 1)])[-_OPEN_ROWS:]
            row = -1
        rooms_W2[row] -= lengths_P2[pair]
    return rows


class PairStream:
    """The samples 0, 1, 2, ... of a phase: sample 2k and 2k + 1 are the two rows of the k-th place.

    Args:
        sources: of each, its pairs, in the order of the run's `data.sources`.
        seq_len: S; no side of a pair is longer than S - 1.
        seed: of the run.

    Attributes:
        first_S: number of the first pair of each source among all.
        reference_P2: what `REFERENCE` tells; None: batches have none.
    """

    def __init__(self, sources: Sequence[PairArrays], seq_len: int, *, seed: int) -> None:
        self.sources, self.seq_len, self.seed = list(sources), seq_len, seed
        self._rows = [pack_pairs(pairs.lengths_P2, seq_len) for pairs in sources]
        self._starts = [pairs.starts_P2 for pairs in sources]
        self._row_ends_S = np.cumsum([len(rows) for rows in self._rows])
        self.first_S = np.cumsum([0, *(len(pairs) for pairs in sources)])
        self.reference_P2: NDArray[np.float32] | None = None

    @property
    def num_pairs(self) -> int:
        return int(self.first_S[-1])

    @property
    def num_samples(self) -> int:
        """Rows of an epoch."""
        return 2 * int(self._row_ends_S[-1])

    def batch(self, first: int, size: int, rank: int = 0, world: int = 1) -> Batch:
        """The rank-th of `world` equal slices of samples [first, first + size).

        Raises:
            DataError: a slice would not have whole pairs of rows.
        """
        if first % 2 or size % (2 * world):
            raise DataError(
                f"batch_size {size}: rows are pairs, so each of {world} data ranks needs an even number; choose a "
                f"multiple of {2 * world}"
            )
        share = size // world
        samples = range(first + rank * share, first + (rank + 1) * share)
        places = [self.locate(sample) for sample in samples]
        rows = [
            self._documents(source, row, sample % 2) for sample, (source, row, _) in zip(samples, places, strict=True)
        ]
        return pack(rows, self.seq_len, sample_indices=samples, source_B=[source for source, _, _ in places])

    def locate(self, sample: int) -> tuple[int, int, int]:
        """Source, its pair of rows, and epoch of a sample."""
        epoch, place = divmod(sample // 2, self.num_samples // 2)
        row = int(permute(place, self.num_samples // 2, stream_key(self.seed, "preferences", epoch)))
        source = int(np.searchsorted(self._row_ends_S, row, side="right"))
        return source, row - int(self._row_ends_S[source]) + len(self._rows[source]), epoch

    def pairs_of(self, source: int, row: int) -> list[int]:
        """Numbers within the source of what a pair of rows holds."""
        return self._rows[source][row]

    def _documents(self, source: int, row: int, side: int) -> list[PackedDocument]:
        return [self._document(source, pair, side) for pair in self._rows[source][row]]

    def _document(self, source: int, pair: int, side: int) -> PackedDocument:
        pairs, number = self.sources[source], int(self.first_S[source]) + pair
        start, length = int(self._starts[source][pair, side]), int(pairs.lengths_P2[pair, side])
        ids_N = torch.from_numpy(pairs.ids[start : start + length].astype(np.int64))
        is_asked_N = torch.from_numpy(pairs.is_trained[start + 1 : start + length])
        labels_N = torch.full_like(ids_N, IGNORED_LABEL)
        labels_N[:-1] = ids_N[1:].where(is_asked_N, IGNORED_LABEL)
        per_token = {PAIR: _at_end(length, number + 1), MARGIN: _at_end(length, float(pairs.margins_P[pair]))}
        if self.reference_P2 is not None:
            per_token[REFERENCE] = _at_end(length, float(self.reference_P2[number, side]))
        return PackedDocument(ids_N, labels_N, per_token)


class PairCurriculum:
    """A phase of preferences as `CurriculumSource` reads it; see `glmforge.data.stream.curriculum.Curriculum`.

    `phase` is its name, `names` are those of the sources, `identities` of what they are made from.
    """

    def __init__(self, stream: PairStream, phase: str, names: Sequence[str], identities: Sequence[str]) -> None:
        self.pairs, self.phase, self.names, self.identities = stream, phase, list(names), list(identities)

    def stream(self, phase_index: int, samples_consumed: Mapping[str, int]) -> PairStream:
        return self.pairs

    def fingerprint(self) -> dict[str, Any]:
        """What the phase's samples depend on: a run that goes on must find the same."""
        sources = dict(zip(self.names, self.identities, strict=True))
        return {self.phase: {"seed": self.pairs.seed, "seq_len": self.pairs.seq_len, "preferences": sources}}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any], samples_consumed: Mapping[str, int]) -> list[str]:
        return []

    def describe(self, phase_index: int, sample: int) -> dict[str, Any]:
        """Where a sample comes from; `pairs` are numbers within the source, in the order of its valid records."""
        source, row, epoch = self.pairs.locate(sample)
        side = ("chosen", "rejected")[sample % 2]
        found = {"phase": self.phase, "sample": sample, "source": self.names[source], "epoch": epoch, "side": side}
        return found | {"pairs": self.pairs.pairs_of(source, row)}

    def epochs(self, samples_consumed: Mapping[str, int]) -> dict[str, float]:
        passes = sum(samples_consumed.values()) / self.pairs.num_samples
        return dict.fromkeys(self.names, passes) if passes else {}


def _at_end(length: int, value: float) -> Tensor:
    """[length]: zeros, then the value; int64 if it is an integer."""
    values_N = torch.zeros(length, dtype=torch.int64 if isinstance(value, int) else torch.float32)
    values_N[-1] = value
    return values_N
