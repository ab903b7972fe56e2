"""The data of a whole run: one stream per phase, and the record of what has been drawn from where.

A source may be drawn from in several phases, and its cap on epochs (`max_epochs`) counts over all of them. What a
weight asks beyond the cap goes to the phase's other sources in proportion; phases are served in order, so an early
one may leave a later one nothing. That is reckoned for all phases before the first step, where a run that lacks text
is refused.

Weights may change in mid-run: the configuration holds from the next sample on, and the record keeps what held before,
so every sample that has been consumed can still be named (`glmforge.data.stream.record`).
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.caps import SuppliesLackError, proportions, same_proportions, share_out
from glmforge.data.stream.phase import PhaseStream
from glmforge.data.stream.record import MixtureEntry, PhaseRecord, Track, Tracks
from glmforge.data.stream.sources import Sources
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import CheckpointError, DataError

Records = Mapping[str, PhaseRecord]
"""By phase."""

Consumed = Mapping[str, int]
"""Samples consumed, by phase."""


class PlannedDraw(NamedTuple):
    """What a phase draws from a source; `epochs` is how often it goes through it, by the phase's packing."""

    phase: str
    source: str
    samples: int
    tokens: int
    epochs: float


class Curriculum:
    """Owns the streams of all phases.

    Args:
        config: the run.
        shards: the sources' shards, by name.

    Raises:
        DataError: a source has no whole row of a phase's length, or a phase lacks text under the caps on epochs.
    """

    def __init__(self, config: RunConfig, shards: Mapping[str, TokenShard]) -> None:
        self._config = config
        self._sources = Sources(config, shards)
        self._records: dict[str, PhaseRecord] = {}
        self._gone: dict[str, Any] = {}  # identities of sources that were consumed and are no longer configured
        self._planned({})

    def stream(self, phase_index: int, samples_consumed: Consumed) -> PhaseStream:
        """The samples of a phase. If it begins now, its mixture is recorded.

        `samples_consumed` tells where the earlier phases have left their sources.
        """
        phase = self._config.phases[phase_index]
        if phase.name not in self._records:
            unknown = [name for name, samples in samples_consumed.items() if samples and name not in self._records]
            assert not unknown, f"samples of {unknown} were consumed, but load_state_dict had no record of it"
            self._records[phase.name] = self._begun(phase_index, self._records, samples_consumed)
        return self._stream(phase, self._records[phase.name])

    def state_dict(self) -> dict[str, Any]:
        """The record of all phases begun, and which shards their sources are, as JSON's types."""
        drawn = {name for record in self._records.values() for name in record.num_rows}
        configured = [source.name for source in self._config.data.sources]
        return {
            "phases": {name: record.to_json() for name, record in self._records.items()},
            "sources": self._gone | {name: self._sources.identity(name) for name in configured if name in drawn},
        }

    def load_state_dict(self, state: Mapping[str, Any], samples_consumed: Consumed) -> list[str]:
        """Take up a record, and follow the configuration from here on. Also goes back to an earlier record.

        Returns:
            what changes, a line per phase: "phase 'x' from sample 4,096: web 0.5 -> 0.3, code 0.5 -> 0.7".

        Raises:
            CheckpointError: a source is another shard now than the one consumed, or the record is missing.
            DataError: a phase lacks text under the caps on epochs.
        """
        identities = state.get("sources", {})
        self._sources.check_identities(identities)
        configured = {source.name for source in self._config.data.sources}
        self._gone = {name: identity for name, identity in identities.items() if name not in configured}
        records = {name: PhaseRecord.from_json(content) for name, content in state.get("phases", {}).items()}
        self._records = {name: record for name, record in records.items() if samples_consumed.get(name)}
        changes = []
        for index, phase in enumerate(self._config.phases):
            consumed = samples_consumed.get(phase.name, 0)
            if consumed:
                self._check_rows(phase)
            if 0 < consumed < phase.num_samples:
                changes += self._follow_configuration(index, samples_consumed)
        self._planned(samples_consumed)
        return changes

    def fingerprint(self) -> dict[str, Any]:
        """Per phase, what its samples depend on besides the shards and the record, as JSON's types.

        Sources may come and go, so `load_state_dict` compares them by name, and they are not in here.
        """
        return {
            phase.name: {
                "seed": self._config.seed,
                "seq_len": phase.seq_len,
                "packing": phase.packing,
                "document_mask": phase.document_mask,
                "fim_rate": phase.fim_rate,
            }
            for phase in self._config.phases
        }

    def describe(self, phase_index: int, sample: int) -> dict[str, Any]:
        """Where a sample comes from, as JSON's types.

        Returns:
            phase, sample, source, shard (prefix), epoch, row, and `pieces`: per stretch of the shard's tokens in it
            {"tokens": [start, stop], "documents": [first, last]}.

        Raises:
            DataError: it comes from a source that the configuration no longer has.
        """
        phase = self._config.phases[phase_index]
        stream = self._stream(phase, self._records.get(phase.name) or self._planned({})[phase.name])
        (place,) = stream.locate([sample])
        source = stream.sources[place.source]
        return {
            "phase": phase.name,
            "sample": sample,
            "source": place.source,
            "shard": str(source.shard.prefix),
            "epoch": place.epoch,
            "row": place.row,
            "pieces": [
                {"tokens": [start, stop], "documents": [source.shard.document_at(t) for t in (start, stop - 1)]}
                for start, stop in source.rows.describe(place.row)
            ],
        }

    def epochs(self, samples_consumed: Consumed) -> dict[str, float]:
        """How often each source has been passed through by then, sources that have not been drawn from omitted."""
        tracks = Tracks([(record, samples_consumed.get(name, 0)) for name, record in self._records.items()])
        epochs = {source.name: float(tracks.epochs(source.name)) for source in self._config.data.sources}
        return {name: passes for name, passes in epochs.items() if passes}

    def planned_draws(self) -> list[PlannedDraw]:
        """What each phase draws from each source from its first sample to its last; begun phases as recorded."""
        planned = self._planned({})
        return [
            PlannedDraw(phase.name, name, samples, samples * phase.seq_len, samples / record.num_rows[name])
            for phase, record in ((phase, planned[phase.name]) for phase in self._config.phases)
            for name, samples in record.drawn(phase.num_samples).items()
        ]

    def _planned(self, samples_consumed: Consumed) -> dict[str, PhaseRecord]:
        """The records of all phases, those not begun as they will be if all goes as configured."""
        records, ends = dict(self._records), dict(samples_consumed)
        for index, phase in enumerate(self._config.phases):
            if phase.name not in records:
                records[phase.name] = self._begun(index, records, ends)
            ends[phase.name] = max(phase.num_samples, ends.get(phase.name, 0))
        return records

    def _begun(self, index: int, records: Records, samples_consumed: Consumed) -> PhaseRecord:
        phase = self._config.phases[index]
        return self._with_entry(PhaseRecord(phase.seq_len, phase.packing, {}, ()), index, records, samples_consumed)

    def _with_entry(self, record: PhaseRecord, index: int, records: Records, samples_consumed: Consumed) -> PhaseRecord:
        """`record` with an entry that follows the configuration from the phase's next sample on."""
        phase = self._config.phases[index]
        first = samples_consumed.get(phase.name, 0)
        tracks = Tracks([(other, samples_consumed.get(name, 0)) for name, other in records.items()])
        weights, caps = self._config.source_weights(phase), self._caps(phase)
        num_rows = {name: self._sources.rows(phase, name).num_rows for name in weights}
        rooms = {
            name: max(0, int((Fraction(str(cap)) - tracks.epochs(name)) * num_rows[name])) for name, cap in caps.items()
        }
        try:
            effective = share_out(weights, rooms, phase.num_samples - first)
        except SuppliesLackError as error:
            raise DataError(_lack(index, phase, error.missing * phase.seq_len, list(weights))) from error
        begin = {name: tracks.position(Track(name, phase.seq_len, phase.packing)) for name in effective}
        return record.with_entry(MixtureEntry(first, weights, caps, phase.num_samples, effective, begin), num_rows)

    def _follow_configuration(self, index: int, samples_consumed: Consumed) -> list[str]:
        """Let the record of a phase that has begun follow changed weights or caps; tells what changed."""
        phase = self._config.phases[index]
        before, caps = self._records[phase.name].entries[-1], self._caps(phase)
        same_weights = same_proportions(before.weights, self._config.source_weights(phase))
        capped = caps or before.max_epochs
        if same_weights and (not capped or (caps, phase.num_samples) == (before.max_epochs, before.num_samples)):
            return []
        record = self._with_entry(self._records[phase.name], index, self._records, samples_consumed)
        after = record.entries[-1]
        if same_weights and same_proportions(before.effective, after.effective):
            return []
        self._records[phase.name] = record
        return [f"phase '{phase.name}' from sample {after.first_sample:,}: {_difference(before, after)}"]

    def _stream(self, phase: PhaseConfig, record: PhaseRecord) -> PhaseStream:
        sources = self._sources.of_phase(phase, record.num_rows)
        return PhaseStream(record, sources, seed=self._config.seed, vocab_size=self._config.model.vocab_size)

    def _caps(self, phase: PhaseConfig) -> dict[str, float]:
        weights = self._config.source_weights(phase)
        return {
            source.name: source.max_epochs
            for source in self._config.data.sources
            if source.name in weights and source.max_epochs is not None
        }

    def _check_rows(self, phase: PhaseConfig) -> None:
        """Raise unless the record of a phase has the rows that its sources have."""
        record = self._records.get(phase.name)
        if record is None:
            raise CheckpointError(
                f"phase '{phase.name}': the checkpoint does not record the mixture of its samples; start a new run "
                "under another name, with init_from"
            )
        for name, source in self._sources.of_phase(phase, record.num_rows).items():
            if source.rows.num_rows != record.num_rows[name]:
                raise CheckpointError(
                    f"phase '{phase.name}', source '{name}': has {source.rows.num_rows:,} rows but had "
                    f"{record.num_rows[name]:,} when it was consumed; restore its seq_len and packing"
                )


def _lack(index: int, phase: PhaseConfig, missing: int, names: list[str]) -> str:
    return (
        f"phases.{index} '{phase.name}': its sources ({', '.join(names)}) give {missing:,} tokens too few within "
        "data.sources.max_epochs, which counts over all phases; raise it, add a source, or shorten the phase"
    )


def _difference(before: MixtureEntry, after: MixtureEntry) -> str:
    """Shares before and after, of the sources where they differ: those requested, or else what the caps leave."""
    if same_proportions(before.weights, after.weights):
        return f"{_shifts(before.effective, after.effective)} (data.sources.max_epochs)"
    return _shifts(before.weights, after.weights)


def _shifts(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    old, new = proportions(before), proportions(after)
    shifts = {name: (float(old.get(name, 0)), float(new.get(name, 0))) for name in old | new}
    return ", ".join(f"{name} {a:.4g} -> {b:.4g}" for name, (a, b) in shifts.items() if a != b)
