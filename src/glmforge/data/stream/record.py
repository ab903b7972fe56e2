"""What has been drawn from where: the mixtures of a phase in turn.

A *track* is one source read by one rule (sequence length and packing): its rows, reshuffled in each epoch, as one
endless sequence. Every phase that reads a source by the same rule continues along the same track, so nothing comes
again before everything has come. An entry of a record tells with which weights a phase draws from some sample on, and
where each track stood there; sample i of the phase follows from the entries alone. Entries are made when a phase
begins and when a resumed run asks for other weights, and they are part of every checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, Self

from glmforge.data.stream.caps import Weights
from glmforge.data.stream.mixture import Mixture
from glmforge.data.stream.rows import Packing


class Track(NamedTuple):
    """One source read by one rule."""

    source: str
    seq_len: int
    packing: Packing


@dataclass(frozen=True)
class MixtureEntry:
    """The mixture of a phase from one sample on.

    Attributes:
        first_sample: of the phase, the first that this entry decides.
        weights: as the configuration asks, by source.
        max_epochs: the caps of these sources, those that have one.
        num_samples: of the phase; the caps were reckoned with it.
        effective: weights after the caps.
        begin: per source in `effective`, the number of its next sample on its track.
    """

    first_sample: int
    weights: Weights
    max_epochs: Weights
    num_samples: int
    effective: Weights
    begin: dict[str, int]

    @cached_property
    def names(self) -> list[str]:
        """Sources in the order of the mixture, which must not depend on how a configuration lists them."""
        return sorted(self.effective)

    @cached_property
    def mixture(self) -> Mixture:
        return Mixture([self.effective[name] for name in self.names])

    def locate(self, sample: int) -> tuple[str, int]:
        """(source, number on its track) of a sample of the phase."""
        source, number = self.mixture.locate(sample - self.first_sample)
        name = self.names[source]
        return name, self.begin[name] + number

    def positions(self, stop: int) -> dict[str, int]:
        """Where each source's track stands before sample `stop` of the phase."""
        samples = max(0, stop - self.first_sample)
        return {name: self.begin[name] + self.mixture.count(samples, i) for i, name in enumerate(self.names)}


@dataclass(frozen=True)
class PhaseRecord:
    """A phase's entries in order, by which rule it reads, and the rows that its sources have by that rule."""

    seq_len: int
    packing: Packing
    num_rows: dict[str, int]
    entries: tuple[MixtureEntry, ...]

    def entry_of(self, sample: int) -> MixtureEntry:
        return next(entry for entry in reversed(self.entries) if entry.first_sample <= sample)

    def with_entry(self, entry: MixtureEntry, num_rows: Mapping[str, int]) -> Self:
        """With an entry that decides all samples from its first."""
        earlier = tuple(other for other in self.entries if other.first_sample < entry.first_sample)
        return replace(self, entries=(*earlier, entry), num_rows={**self.num_rows, **num_rows})

    def positions(self, consumed: int) -> dict[str, int]:
        """Where each source's track stands after `consumed` samples of the phase."""
        return {name: position for _, positions in self._read(consumed) for name, position in positions.items()}

    def drawn(self, consumed: int) -> dict[str, int]:
        """Samples of each source among the first `consumed` of the phase."""
        samples: dict[str, int] = {}
        for entry, positions in self._read(consumed):
            for name, position in positions.items():
                samples[name] = samples.get(name, 0) + position - entry.begin[name]
        return samples

    def _read(self, consumed: int) -> Iterator[tuple[MixtureEntry, dict[str, int]]]:
        """Each entry with the positions of its tracks when the next takes over."""
        stops = [*(entry.first_sample for entry in self.entries[1:]), consumed]
        for entry, stop in zip(self.entries, stops, strict=True):
            yield entry, entry.positions(min(stop, consumed))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"entries": [asdict(entry) for entry in self.entries]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        entries = tuple(MixtureEntry(**entry) for entry in content["entries"])
        return cls(**{**content, "entries": entries})


class Tracks:
    """How far every track has been read, over some phases."""

    def __init__(self, records: Sequence[tuple[PhaseRecord, int]]) -> None:
        """`records`: phases with the samples consumed of each."""
        self._positions: dict[Track, int] = {}
        self._num_rows: dict[Track, int] = {}
        for record, consumed in records:
            for name, position in record.positions(consumed).items():
                track = Track(name, record.seq_len, record.packing)
                self._positions[track] = max(position, self._positions.get(track, 0))
                self._num_rows[track] = record.num_rows[name]

    def position(self, track: Track) -> int:
        """The number of the track's next sample."""
        return self._positions.get(track, 0)

    def epochs(self, source: str) -> Fraction:
        """How often the source has been passed through, by any rules."""
        return sum(
            (Fraction(n, self._num_rows[track]) for track, n in self._positions.items() if track.source == source),
            Fraction(0),
        )
