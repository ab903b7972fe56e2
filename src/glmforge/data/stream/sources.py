"""The sources of a run, opened by the rule of each phase that reads them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.fim import FimTokens
from glmforge.data.stream.phase import FimRule, PhaseSource
from glmforge.data.stream.record import Track
from glmforge.data.stream.rows import RowReader, open_rows
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import CheckpointError, DataError


class Sources:
    """The shards of `config.data.sources` and their rows, each opened once.

    Args:
        config: the run.
        shards: by source name.

    Raises:
        DataError: documents with loss weights are to be rearranged.
    """

    def __init__(self, config: RunConfig, shards: Mapping[str, TokenShard]) -> None:
        self._config, self._shards = config, dict(shards)
        self._rows: dict[tuple[Track, bool], RowReader] = {}
        self._identities: dict[str, Any] = {}
        self._tokenizer = _fim_tokenizer(config)
        for source in config.data.sources:
            if source.code and self._tokenizer is not None and self._shards[source.name].loss is not None:
                raise DataError(
                    f"source '{source.name}': fim_rate does not apply to documents with loss weights, such as "
                    "conversations; set its code to false"
                )

    def of_phase(self, phase: PhaseConfig, names: Iterable[str]) -> dict[str, PhaseSource]:
        """Those of `names` that the configuration has, as `phase` reads them."""
        wanted = set(names)
        return {
            source.name: PhaseSource(
                source.name,
                index,
                self._shards[source.name],
                self.rows(phase, source.name),
                self._fim_rule(phase) if source.code else None,
            )
            for index, source in enumerate(self._config.data.sources)
            if source.name in wanted
        }

    def rows(self, phase: PhaseConfig, name: str) -> RowReader:
        """The rows of a source by a phase's rule.

        Raises:
            DataError: there are no rows, or the packing cannot be read.
        """
        key = Track(name, phase.seq_len, phase.packing), phase.document_mask
        if key not in self._rows:
            self._rows[key] = self._open_rows(phase, name)
        return self._rows[key]

    def identity(self, name: str) -> Any:
        """Which shard the source is. Without a description it is identified by a checksum of its index, read once."""
        if name not in self._identities:
            self._identities[name] = self._shards[name].identity()
        return self._identities[name]

    def check_identities(self, consumed: Mapping[str, Any]) -> None:
        """Raise a CheckpointError if a source is another shard now than in `consumed`."""
        for name in sorted(consumed.keys() & self._shards.keys()):
            now, before = self.identity(name), consumed[name]
            if now != before:
                raise CheckpointError(
                    f"source '{name}' ({self._shards[name].prefix}): is {now} but was {before} when it was consumed; "
                    "restore that shard, or rename the new one in data.sources"
                )

    def _open_rows(self, phase: PhaseConfig, name: str) -> RowReader:
        shard = self._shards[name]
        rows = open_rows(
            shard,
            seq_len=phase.seq_len,
            packing=phase.packing,
            document_mask=phase.document_mask,
            packing_dir=self._packing_dir(name),
        )
        if rows.num_rows == 0:
            raise DataError(
                f"source '{name}' ({shard.prefix}): {shard.num_tokens:,} tokens are too few for one sequence of "
                f"seq_len {phase.seq_len} and its last label; add text or lower seq_len"
            )
        return rows

    def _packing_dir(self, name: str) -> Path:
        """Beside the source's own files, not beside the copy that a node may read."""
        own = next(source.path.parent for source in self._config.data.sources if source.name == name)
        return self._config.data.packing_dir or own

    def _fim_rule(self, phase: PhaseConfig) -> FimRule | None:
        if self._tokenizer is None or not phase.fim_rate:
            return None
        return FimRule(phase.fim_rate, FimTokens.of(self._tokenizer), self._tokenizer.end_of_text_id)


def _fim_tokenizer(config: RunConfig) -> Tokenizer | None:
    """The run's tokenizer, if a phase needs to know its special tokens."""
    needed = any(phase.fim_rate for phase in config.phases)
    return Tokenizer.load(config.data.tokenizer) if needed else None
