"""The stage that writes documents as JSON lines too, for programs that read those."""

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import numpy as np
import orjson
import zstandard
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch, read_batches
from glmforge_corpus.pipeline.stage import JSONL, PerShard, Stage, StageContext, Step, TaskOutput

Compression = Literal["none", "gz", "zst"]
_SUFFIX = {"none": "", "gz": ".gz", "zst": ".zst"}


class Jsonl(Stage):
    """Hands on the documents and writes them as JSON lines into `jsonl/` of the run.

    A line has id, text, source, and, where there are any, language, metadata (as an object) and scores.
    """

    kind: ClassVar[str] = "jsonl"
    compression: Compression = Field(default="zst", description="none, gz or zst")

    def steps(self, context: StageContext) -> list[Step]:
        return [_Write(tuple(context.shards), self.compression)]


@dataclass(frozen=True)
class _Write(PerShard):
    compression: Compression

    def run(self, task: int, output: TaskOutput) -> None:
        with _opened(output.directory / (JSONL + _SUFFIX[self.compression]), self.compression) as file:
            for batch in read_batches(self.shards[task]):
                file.write(b"".join(json_lines(batch)))
        super().run(task, output)

    def process(self, batch: DocumentBatch, output: TaskOutput) -> DocumentBatch:
        return batch


class _Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


@contextmanager
def _opened(path: Path, compression: Compression) -> Iterator[_Writable]:
    """A file whose bytes depend on what is written alone: gzip would put the time into it."""
    with path.open("wb") as raw:
        if compression == "gz":
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                yield packed
        elif compression == "zst":
            with zstandard.ZstdCompressor().stream_writer(raw) as packed:
                yield packed
        else:
            yield raw


def json_lines(batch: DocumentBatch) -> Iterator[bytes]:
    """Each document as a line of JSON."""
    names = ("id", "text", "source", "language", "metadata")
    columns: Sequence[list[str | None]] = [batch.table.column(name).to_pylist() for name in names]
    scores = {name: batch.score(name) for name in batch.score_names}
    for row, (id_, text, source, language, metadata) in enumerate(zip(*columns, strict=True)):
        record: dict[str, object] = {"id": id_, "text": text, "source": source}
        if language is not None:
            record["language"] = language
        if metadata is not None:
            record["metadata"] = orjson.Fragment(metadata)
        own = {name: round(float(values[row]), 6) for name, values in scores.items() if not np.isnan(values[row])}
        if own:
            record["scores"] = own
        yield orjson.dumps(record) + b"\n"
