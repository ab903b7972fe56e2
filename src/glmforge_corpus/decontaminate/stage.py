"""The stage that finds items of evaluation sets in the corpus, and takes them out.

Three steps: every shard is searched; what was found is merged into one table, `findings/00000/findings.parquet`, with
a summary per set in `report.json`; every shard is read again and cut. A search without removal (`action: report`) is
how thresholds are looked at before anything is lost.

How an item is recognised stands in `contamination.py`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch, read_batches
from glmforge.errors import DataError
from glmforge_corpus.decontaminate.contamination import Contamination, Finding, Matching, load_once
from glmforge_corpus.decontaminate.evaluation_sets import EvaluationSet, read_items
from glmforge_corpus.pipeline.stage import (
    REPORT,
    ShardStep,
    Stage,
    StageContext,
    Step,
    TaskOutput,
    pass_on,
    task_directory,
)
from glmforge_corpus.pipeline.statistics import dump_json

Action = Literal["remove_document", "remove_passage", "report"]

FINDINGS = "findings.parquet"
"""Table of what was found, one row per place; columns `SCHEMA`."""

SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),  # of the shard
        pa.field("document", pa.string()),
        pa.field("source", pa.string()),
        pa.field("set", pa.string()),
        pa.field("item", pa.string()),
        pa.field("field", pa.string()),
        pa.field("rule", pa.string()),
        pa.field("start", pa.int64()),  # bytes of the document's UTF-8
        pa.field("stop", pa.int64()),
        pa.field("run_words", pa.int32()),
        pa.field("share", pa.float32()),
        pa.field("excerpt", pa.string()),
    ]
)

MAX_CUTS = 10
"""A document that would be cut in more places is mostly evaluation material, and removed (as for GPT-3)."""

EXAMPLES_IN_REPORT = 20

_SEARCH, _MERGE, _APPLY = "search", "findings", "documents"


class Decontaminate(Stage):
    """Keep evaluation sets out of training text."""

    kind: ClassVar[str] = "decontaminate"
    revision: ClassVar[int] = 2
    against: Annotated[tuple[EvaluationSet, ...], Field(strict=False)] = Field(
        min_length=1, description="evaluation sets whose items are removed"
    )
    action: Action = Field(
        default="remove_document",
        description="action for documents that contain an item: remove_document, remove_passage (with `margin` "
        "around it), or report",
    )
    matching: Matching = Field(default=Matching(), description="what counts as containing an item")
    margin: int = Field(
        default=200, ge=0, description="bytes removed on both sides of a passage, up to a word boundary"
    )
    min_rest: int = Field(
        default=200, ge=1, description="bytes; shorter pieces between removed passages are removed too"
    )

    def steps(self, context: StageContext) -> list[Step]:
        shards = tuple(context.shards)
        return [
            _Search(shards, self),
            _Merge(self, context.directory, len(shards)),
            _Apply(shards, self, context.directory),
        ]

    def check(self) -> Self:
        names = Counter(one.name for one in self.against)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise DataError(f"against: the name '{twice[0]}' occurs twice; give each evaluation set its own name")
        for one in self.against:
            read_items(one)  # a wrong file is reported before the corpus is read, not after
        self.matching.check()
        return self

    def describe(self) -> str:
        return f"decontaminate against {', '.join(one.name for one in self.against)}: {self.action}"


@dataclass(frozen=True)
class _Search(ShardStep):
    """Task: what a shard holds of the evaluation sets."""

    stage: Decontaminate
    name: str = _SEARCH

    def run(self, task: int, output: TaskOutput) -> None:
        contamination = load_once(self.stage.against, self.stage.matching)
        first = 0
        with parquet.ParquetWriter(output.directory / FINDINGS, SCHEMA, compression="zstd") as writer:
            for batch in read_batches(self.shards[task], ("id", "text", "source")):
                table = _as_table(contamination.find_in(batch), batch, first)
                if len(table):
                    writer.write_table(table)
                first += len(batch)


def _as_table(findings: Sequence[Finding], batch: DocumentBatch, first: int) -> pa.Table:
    rows = np.array([finding.document for finding in findings], np.int64)
    named = batch.table.take(pa.array(rows))
    columns = {
        "row": rows + first,
        "document": named.column("id"),
        "source": named.column("source"),
        "set": [finding.set_name for finding in findings],
    }
    same = ("item", "field", "rule", "start", "stop", "run_words", "share", "excerpt")
    columns |= {name: [getattr(finding, name) for finding in findings] for name in same}
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class _Merge(Step):
    """One task: all findings in one table, and how many items of each set were found."""

    stage: Decontaminate
    directory: Path
    num_shards: int
    name: str = _MERGE
    num_tasks: int = 1

    def run(self, task: int, output: TaskOutput) -> None:
        contamination = load_once(self.stage.against, self.stage.matching)
        summary = _Summary()
        with parquet.ParquetWriter(output.directory / FINDINGS, SCHEMA, compression="zstd") as writer:
            for shard in range(self.num_shards):
                for table in _read_findings(self.directory, shard):
                    writer.write_table(table)
                    summary.add(table)
        for name, count in summary.documents.items():
            output.statistics.counts[f"documents with items of {name}"] = count
        for name, items in summary.items.items():
            output.statistics.counts[f"items of {name} found"] = len(items)
        (output.directory / REPORT).write_bytes(dump_json(summary.report(contamination, self.stage.action)))


def _read_findings(directory: Path, shard: int) -> Iterator[pa.Table]:
    with parquet.ParquetFile(task_directory(directory, _SEARCH, shard) / FINDINGS) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


class _Summary:
    """Adds up findings; grows with the number of items, not of documents."""

    def __init__(self) -> None:
        self.items: dict[str, set[str]] = {}
        self.documents: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.examples: list[dict[str, Any]] = []

    def add(self, table: pa.Table) -> None:
        rows = table.to_pylist()
        for name, item in {(row["set"], row["item"]) for row in rows}:
            self.items.setdefault(name, set()).add(item)
        self.documents.update(name for name, _ in {(row["set"], row["row"]) for row in rows})
        self.rules.update(row["rule"] for row in rows)
        self.examples += rows[: EXAMPLES_IN_REPORT - len(self.examples)]

    def report(self, contamination: Contamination, action: Action) -> dict[str, Any]:
        sets = [
            {
                "name": one.name,
                "items": one.num_items,
                "searched_for": one.num_searchable,
                "too_short": one.num_short,
                "items_found": len(self.items.get(one.name, ())),
                "documents": self.documents[one.name],
            }
            for one in contamination.summaries
        ]
        return {"action": action, "sets": sets, "rules": dict(sorted(self.rules.items())), "examples": self.examples}


@dataclass(frozen=True)
class _Apply(ShardStep):
    """Task: a shard without what was found in it."""

    stage: Decontaminate
    directory: Path
    name: str = _APPLY

    def run(self, task: int, output: TaskOutput) -> None:
        places: dict[int, list[tuple[int, int]]] = {}
        for table in _read_findings(self.directory, task):
            for found in table.select(["row", "start", "stop"]).to_pylist():
                places.setdefault(found["row"], []).append((found["start"], found["stop"]))

        def left(batch: DocumentBatch, first: int) -> DocumentBatch:
            here = {row - first: found for row, found in places.items() if 0 <= row - first < len(batch)}
            return _without(batch, here, self.stage, output) if here else batch

        pass_on(self.shards[task], output, left)


def _without(
    batch: DocumentBatch, places: dict[int, list[tuple[int, int]]], stage: Decontaminate, output: TaskOutput
) -> DocumentBatch:
    if stage.action == "report":
        output.statistics.counts["documents with items, left in"] += len(places)
        return batch
    removed = np.zeros(len(batch), np.bool_)
    texts: dict[int, str] = {}
    for row, found in places.items():
        rest = ""
        if stage.action == "remove_passage":
            text = batch.table.column("text")[row].as_py().encode()
            rest = cut(text, found, stage.margin, stage.min_rest)
        removed[row] = not rest
        texts[row] = rest
    output.statistics.add_removed("holds evaluation items", batch, np.flatnonzero(removed))
    if not removed.all() and stage.action == "remove_passage":
        output.statistics.counts["documents cut"] += int(len(places) - removed.sum())
        changed = [texts.get(row, text) for row, text in enumerate(batch.texts)]
        batch = batch.with_texts(changed)
    return batch.keep(~removed)


def cut(text: bytes, places: Sequence[tuple[int, int]], margin: int, min_rest: int) -> str:
    """UTF-8 without some places and `margin` bytes around each; what is left is joined as paragraphs.

    Cuts are moved outwards to the edge of a word, or of a character where there are no spaces. Pieces shorter than
    `min_rest` bytes are dropped; "" when none is left or more than `MAX_CUTS` cuts would be made.
    """
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((max(0, start - margin), min(len(text), stop + margin)) for start, stop in places):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    if len(merged) > MAX_CUTS:
        return ""
    edges = [0]
    for start, stop in merged:
        edges += _left_edge(text, start), _right_edge(text, stop)
    edges.append(len(text))
    pieces = [text[start:stop].strip() for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    return b"\n\n".join(piece for piece in pieces if len(piece) >= min_rest).decode()


_EDGE_REACH = 40
"""A word's edge is looked for no farther than this; text without spaces is cut between characters."""


def _left_edge(text: bytes, at: int) -> int:
    for i in range(at, max(0, at - _EDGE_REACH), -1):
        if text[i - 1 : i].isspace():
            return i
    return 0 if at <= _EDGE_REACH else _character_start(text, at)


def _right_edge(text: bytes, at: int) -> int:
    for i in range(at, min(len(text), at + _EDGE_REACH)):
        if text[i : i + 1].isspace():
            return i
    return len(text) if at + _EDGE_REACH >= len(text) else _character_start(text, at + 3)


def _character_start(text: bytes, at: int) -> int:
    """The last byte at or before `at` that begins a character."""
    while at > 0 and at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at
