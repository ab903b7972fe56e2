"""The stage that removes what is there twice, letter by letter or word by word.

    fingerprints  a task per shard: 128 bits of each text, id and, if wanted, paragraph; sorted
    repeats       a task per part of the fingerprints: what has occurred before
    documents     a task per shard: what is left of it

Of equal documents the first in the order of shards and rows stays. Two documents with one id but different texts are
different documents: the later ones are renamed `<id>~2`, `<id>~3`, ... With `paragraphs` a paragraph that has occurred
before, in this document or an earlier one, is cut out; short ones are left alone, because headings and "Yes." repeat
for good reasons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch, read_batches
from glmforge_corpus.deduplicate.bands import MAX_PARTS
from glmforge_corpus.deduplicate.fingerprints import (
    Compare,
    Paragraph,
    Repeats,
    find_repeats,
    fingerprints,
    paragraphs,
    repeats_of_shard,
    write_records,
)
from glmforge_corpus.deduplicate.places import dense_mask, open_array
from glmforge_corpus.deduplicate.removal import cut, is_blank
from glmforge_corpus.pipeline.stage import ShardStep, Stage, StageContext, Step, TaskOutput, pass_on, task_directory

SAME_TEXT = "exact: same text"
DUPLICATE_ID = "exact: duplicate id"
ALL_SEEN = "exact: every paragraph seen before"
RENAMED = "exact: documents renamed for a duplicate id"
_TEXT, _ID, _PARAGRAPH = "text", "id", "paragraph"
_NUMBERED = "numbered_ids.npy"


class Exact(Stage):
    """Exact duplicates: documents, ids and, if wanted, paragraphs."""

    kind: ClassVar[str] = "exact"

    compare: Compare = Field(default="words", description="words: ignore case and spacing; bytes: compare everything")
    paragraphs: Literal["keep"] | Paragraph = Field(
        default="keep", description="line or block (between blank lines): cut out those that occurred before"
    )
    min_paragraph_bytes: int = Field(default=200, ge=1, description="shorter paragraphs are ignored")
    check_only: bool = Field(default=False, description="count only; change nothing")

    def steps(self, context: StageContext) -> list[Step]:
        shards, stage = tuple(context.shards), context.directory
        parts = min(max(len(shards), 1), MAX_PARTS)
        made = [task_directory(stage, Fingerprints.name, shard) for shard in range(len(shards))]
        found = [task_directory(stage, FindRepeats.name, part) for part in range(parts)]
        paragraph = None if self.paragraphs == "keep" else self.paragraphs
        kinds = (_TEXT, _ID) if paragraph is None else (_TEXT, _ID, _PARAGRAPH)
        return [
            Fingerprints(shards, self.compare, paragraph, self.min_paragraph_bytes),
            FindRepeats(made, kinds, parts),
            RemoveRepeats(shards, made, found, paragraph, self.check_only),
        ]


@dataclass(frozen=True)
class Fingerprints(ShardStep):
    compare: Compare
    paragraph: Paragraph | None
    min_bytes: int
    name: str = "fingerprints"

    def run(self, task: int, output: TaskOutput) -> None:
        texts, ids, numbered = [_none()], [_none()], [np.zeros(0, np.uint64)]
        pieces, piece_rows, piece_numbers = [_none()], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        start = 0
        for batch in read_batches(self.shards[task], ["id", "text"]):
            offsets = batch.text_offsets
            texts.append(fingerprints(batch.text_bytes, offsets[:-1], offsets[1:], self.compare))
            ids.append(_id_fingerprints(batch.table.column("id")))
            is_numbered = pc.match_substring_regex(batch.table.column("id"), r"~\d+$").to_numpy(zero_copy_only=False)
            numbered.append(ids[-1][is_numbered, 0])
            if self.paragraph is not None:
                borders, starts, stops = paragraphs(batch.text_bytes, offsets, self.paragraph)
                long = np.flatnonzero(stops - starts >= self.min_bytes)
                rows = np.searchsorted(borders, long, "right") - 1
                pieces.append(fingerprints(batch.text_bytes, starts[long], stops[long], self.compare))
                piece_rows.append(start + rows)
                piece_numbers.append(long - borders[rows])
            start += len(batch)
        rows = np.arange(start)
        write_records(output.directory, _TEXT, np.concatenate(texts), rows)
        write_records(output.directory, _ID, np.concatenate(ids), rows)
        np.save(output.directory / _NUMBERED, np.concatenate(numbered))
        if self.paragraph is not None:
            places = np.concatenate(piece_rows), np.concatenate(piece_numbers)
            write_records(output.directory, _PARAGRAPH, np.concatenate(pieces), *places)


def _none() -> NDArray[np.uint64]:
    return np.zeros((0, 2), np.uint64)


def _id_fingerprints(ids: pa.Array) -> NDArray[np.uint64]:
    column = DocumentBatch(pa.record_batch([pc.cast(ids, pa.large_string())], ["text"]))
    return fingerprints(column.text_bytes, column.text_offsets[:-1], column.text_offsets[1:], "bytes")


@dataclass(frozen=True)
class FindRepeats(Step):
    directories: Sequence[Path]
    kinds: Sequence[str]
    num_tasks: int
    name: str = "repeats"

    def run(self, task: int, output: TaskOutput) -> None:
        for kind in self.kinds:
            find_repeats(self.directories, kind, task, self.num_tasks).save(output.directory, kind)


@dataclass(frozen=True)
class RemoveRepeats(ShardStep):
    made: Sequence[Path]
    found: Sequence[Path]
    paragraph: Paragraph | None
    check_only: bool
    name: str = "documents"

    def run(self, task: int, output: TaskOutput) -> None:
        texts = repeats_of_shard(self.found, _TEXT, task).place.astype(np.int64)
        ids = repeats_of_shard(self.found, _ID, task)
        cuts = None if self.paragraph is None else repeats_of_shard(self.found, _PARAGRAPH, task)
        taken = self._taken_ids() if len(ids.place) else frozenset()

        def left(incoming: DocumentBatch, start: int) -> DocumentBatch:
            batch = self._rename(incoming, ids, (task, start), taken)
            same_text = dense_mask(texts, start, len(batch))
            same_id = dense_mask(ids.place.astype(np.int64), start, len(batch))
            reasons = {DUPLICATE_ID: same_text & same_id, SAME_TEXT: same_text & ~same_id}
            if cuts is not None:
                batch, reasons[ALL_SEEN] = self._cut(batch, cuts, start, ~same_text, output)
            output.statistics.counts[RENAMED] += int((same_id & ~same_text).sum())
            return self._keep(incoming, batch, reasons, output)

        pass_on(self.shards[task], output, left)

    def _keep(
        self, incoming: DocumentBatch, batch: DocumentBatch, reasons: dict[str, NDArray[np.bool_]], output: TaskOutput
    ) -> DocumentBatch:
        gone = np.zeros(len(batch), np.bool_)
        for reason, mask in reasons.items():
            gone |= mask
            if self.check_only:
                output.statistics.counts[reason] += int(mask.sum())
            else:
                output.statistics.add_removed(reason, incoming, np.flatnonzero(mask))
        return incoming if self.check_only else batch.keep(~gone)

    def _taken_ids(self) -> frozenset[int]:
        """Of ids that look like the new names."""
        return frozenset(np.concatenate([open_array(directory / _NUMBERED) for directory in self.made]).tolist())

    def _rename(
        self, batch: DocumentBatch, ids: Repeats, place: tuple[int, int], taken: frozenset[int]
    ) -> DocumentBatch:
        shard, start = place
        first, last = np.searchsorted(ids.place, [start, start + len(batch)])
        if first == last:
            return batch
        names: list[str] = batch.ids
        for row, ordinal in zip(ids.place[first:last].tolist(), ids.ordinal[first:last].tolist(), strict=True):
            name = f"{names[row - start]}~{ordinal}"
            if taken and int(_id_fingerprints(pa.array([name]))[0, 0]) in taken:
                name += f"~{shard}.{row}"
            names[row - start] = name
        return DocumentBatch(batch.table.set_column(0, batch.table.schema.field("id"), pa.array(names, pa.string())))

    def _cut(
        self, batch: DocumentBatch, repeats: Repeats, start: int, kept: NDArray[np.bool_], output: TaskOutput
    ) -> tuple[DocumentBatch, NDArray[np.bool_]]:
        """The batch without repeated paragraphs, and `[n]` which documents have nothing left."""
        first, last = np.searchsorted(repeats.place, [start, start + len(batch)])
        rows = repeats.place[first:last].astype(np.int64) - start
        counted = kept[rows]
        if not counted.any():
            return batch, np.zeros(len(batch), np.bool_)
        rows, numbers = rows[counted], repeats.number[first:last][counted]
        assert self.paragraph is not None
        borders, starts, _ = paragraphs(batch.text_bytes, batch.text_offsets, self.paragraph)
        chosen = borders[rows] + numbers
        ends = np.append(starts[1:], 0)[chosen]
        ends = np.where(chosen + 1 == borders[rows + 1], batch.text_offsets[rows + 1], ends)
        per_row: NDArray[Any] = np.searchsorted(rows, np.arange(len(batch) + 1))
        shorter = batch.with_text_buffers(*cut(batch.text_bytes, batch.text_offsets, per_row, starts[chosen], ends))
        empty = is_blank(shorter) & (np.diff(per_row) > 0)
        output.statistics.counts["exact: paragraphs cut"] += len(rows)
        output.statistics.counts["exact: bytes of paragraphs cut"] += int((ends - starts[chosen]).sum())
        return shorter, empty
