"""The stage that cuts out passages which occurred before, word for word, in any documents.

    anchors    a task per shard: about one place in `min_bytes` / 4 of each text, chosen by what stands there
    matches    a task per part of the anchors' hashes: which texts have an anchor in common
    texts      a task per shard: the texts that have, unpacked
    passages   a task per shard: the longest equal stretch around each common anchor, compared byte by byte
    documents  a task per shard: what is left of it

A suffix array (Lee et al., "Deduplicating Training Data Makes Language Models Better", 2022) finds the same passages
and needs the whole corpus in one piece, with five to nine times its size beside it; anchors need about 1 % of that,
can be sorted in parts on many machines, and are guaranteed to meet in every passage of at least `min_bytes`. The first
occurrence, in the order of shards, rows and bytes, stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch, read_batches
from glmforge_corpus.deduplicate.bands import MAX_PARTS
from glmforge_corpus.deduplicate.passages import (
    Matches,
    anchors,
    equal_passages,
    find_matches,
    merged,
    snap,
    write_anchors,
)
from glmforge_corpus.deduplicate.places import (
    dense_mask,
    open_array,
    open_raw,
    part_of_shard,
    rows_in_shard,
    rows_of,
    shards_of,
)
from glmforge_corpus.deduplicate.removal import cut, is_blank
from glmforge_corpus.pipeline.stage import ShardStep, Stage, StageContext, Step, TaskOutput, pass_on, task_directory

REASON = "substring: little left"
_COLUMNS = Matches._fields


class Substring(Stage):
    """Repeated passages within and across documents."""

    kind: ClassVar[str] = "substring"

    min_bytes: int = Field(default=400, ge=64, le=1 << 20, description="minimum length of a passage in bytes of UTF-8")
    min_left: float = Field(default=0.2, ge=0, le=1, description="remove a document if less than this fraction remains")

    check_only: bool = Field(default=False, description="count only; change nothing")

    def steps(self, context: StageContext) -> list[Step]:
        shards, stage = tuple(context.shards), context.directory
        parts = min(max(len(shards), 1), MAX_PARTS)

        def outputs(step: str, count: int) -> tuple[Path, ...]:
            return tuple(task_directory(stage, step, task) for task in range(count))

        matches = outputs("matches", parts)
        return [
            Anchors(shards, self.min_bytes),
            FindMatches(outputs("anchors", len(shards)), parts),
            UnpackTexts(shards, matches),
            FindPassages(outputs("texts", len(shards)), matches, self.min_bytes),
            CutPassages(shards, outputs("passages", len(shards)), self.min_left, self.check_only),
        ]


@dataclass(frozen=True)
class Anchors(ShardStep):
    min_bytes: int
    name: str = "anchors"

    def run(self, task: int, output: TaskOutput) -> None:
        gram = self.min_bytes // 2
        found, start = [(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))], 0
        for batch in read_batches(self.shards[task], ["text"]):
            hashes, rows, places = anchors(batch.text_bytes, batch.text_offsets, gram, self.min_bytes - gram + 1)
            found.append((hashes, rows + start, places))
            start += len(batch)
        write_anchors(output.directory, *map(np.concatenate, zip(*found, strict=True)))


@dataclass(frozen=True)
class FindMatches(Step):
    anchors: Sequence[Path]
    num_tasks: int
    name: str = "matches"

    def run(self, task: int, output: TaskOutput) -> None:
        found = find_matches(self.anchors, task, self.num_tasks)
        for name, column in found._asdict().items():
            np.save(output.directory / f"{name}.npy", column)
        np.save(output.directory / "needed.npy", np.unique(np.concatenate([found.later, found.earlier])))


@dataclass(frozen=True)
class UnpackTexts(ShardStep):
    matches: Sequence[Path]
    name: str = "texts"

    def run(self, task: int, output: TaskOutput) -> None:
        rows = np.unique(np.concatenate([rows_in_shard(path / "needed.npy", task) for path in self.matches]))
        lengths, start = [np.zeros(1, np.int64)], 0
        with (output.directory / "texts.u8").open("wb") as file:
            for batch in read_batches(self.shards[task], ["text"]) if len(rows) else []:
                chosen = batch.keep(dense_mask(rows, start, len(batch)))
                start += len(batch)
                offsets = chosen.text_offsets
                file.write(chosen.text_bytes[offsets[0] : offsets[-1]].data)
                lengths.append(chosen.text_lengths)
        np.save(output.directory / "rows.npy", rows)
        np.save(output.directory / "borders.npy", np.cumsum(np.concatenate(lengths)))


@dataclass(frozen=True)
class FindPassages(Step):
    texts: Sequence[Path]
    matches: Sequence[Path]
    min_bytes: int
    name: str = "passages"

    @property
    def num_tasks(self) -> int:  # type: ignore[override]
        return len(self.texts)

    def run(self, task: int, output: TaskOutput) -> None:
        matches = self._matches(task)
        mine, found = _open_texts(self.texts[task]), [np.zeros((0, 3), np.int64)]
        rows = open_array(self.texts[task] / "rows.npy")
        index = np.searchsorted(rows, rows_of(matches.later))
        sources = shards_of(matches.earlier)
        for shard in np.unique(sources):
            some = np.flatnonzero(sources == shard)
            other = _open_texts(self.texts[shard])
            where = np.searchsorted(open_array(self.texts[shard] / "rows.npy"), rows_of(matches.earlier[some]))
            starts = matches.later_start[some], matches.earlier_start[some]
            found.append(equal_passages(mine, index[some], other, where, starts, self.min_bytes))
        passages = merged(np.concatenate(found))
        snap(*mine, passages)
        passages = passages[passages[:, 2] > passages[:, 1]]
        passages[:, 0] = rows[passages[:, 0]]
        np.save(output.directory / "passages.npy", passages)

    def _matches(self, shard: int) -> Matches:
        """Those with the later text in the shard."""
        columns: list[list[NDArray[Any]]] = [[np.zeros(0, kind)] for kind in (np.uint64, np.int64) * 2]
        for directory in self.matches:
            part = part_of_shard(open_array(directory / "later.npy"), shard)
            for column, name in zip(columns, _COLUMNS, strict=True):
                column.append(open_array(directory / f"{name}.npy")[part])
        return Matches(*map(np.concatenate, columns)).sorted()


def _open_texts(directory: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return open_raw(directory / "texts.u8", np.uint8), open_array(directory / "borders.npy")


@dataclass(frozen=True)
class CutPassages(ShardStep):
    passages: Sequence[Path]
    min_left: float
    check_only: bool
    name: str = "documents"

    def run(self, task: int, output: TaskOutput) -> None:
        passages = open_array(self.passages[task] / "passages.npy")

        def left(batch: DocumentBatch, start: int) -> DocumentBatch:
            borders = np.searchsorted(passages[:, 0], np.arange(start, start + len(batch) + 1))
            if borders[-1] == borders[0]:
                return batch
            return self._cut(batch, borders - borders[0], passages[borders[0] : borders[-1]], output)

        pass_on(self.shards[task], output, left)

    def _cut(
        self, batch: DocumentBatch, borders: NDArray[np.int64], passages: NDArray[np.int64], output: TaskOutput
    ) -> DocumentBatch:
        offsets = batch.text_offsets
        base = np.repeat(offsets[:-1], np.diff(borders))
        spans = base + passages[:, 1], base + passages[:, 2]
        shorter = batch.with_text_buffers(*cut(batch.text_bytes, offsets, borders, *spans))
        touched = np.diff(borders) > 0
        little = touched & (is_blank(shorter) | (shorter.text_lengths < self.min_left * batch.text_lengths))
        output.statistics.counts["substring: passages"] += len(passages)
        output.statistics.counts["substring: bytes of passages"] += int((passages[:, 2] - passages[:, 1]).sum())
        output.statistics.counts["substring: documents with passages"] += int(touched.sum())
        if self.check_only:
            output.statistics.counts[REASON] += int(little.sum())
            return batch
        output.statistics.add_removed(REASON, batch, np.flatnonzero(little))
        return shorter.keep(~little)
