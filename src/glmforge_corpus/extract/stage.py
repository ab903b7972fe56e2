"""The stage that turns raw files into documents.

The files of all inputs are listed when the pipeline is planned, sorted, and grouped into tasks of about `shard_bytes`;
each task writes one shard. Names and sizes stand in the step, so that a file that comes, goes or changes its size makes
another fingerprint: its task is done again instead of being taken for the old one. A file with the same size and other
content is not seen; name a corpus that changes in place anew.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Self

from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge.extras import needed_for
from glmforge_corpus.extract.inputs import Input, SourceFile, group, list_files
from glmforge_corpus.extract.records import Context, UnsuitableFileError, gather
from glmforge_corpus.pipeline.stage import Stage, StageContext, Step, TaskOutput

# Format -> reader, and whether it makes batches itself. Imported by the task that meets the format.
_READERS = {
    "text": ("records:read_text", False),
    "jsonl": ("jsonl:read_jsonl", True),
    "parquet": ("parquet:read_parquet", True),
    "html": ("web:read_html", False),
    "warc": ("web:read_warc", False),
    "pdf": ("pdf:read_pdf", False),
    "repositories": ("code.repository:read_repository", False),
    "issues": ("issues:read_issues", False),
}


class Extract(Stage):
    """Reads the inputs of a pipeline. In a pipeline file it is the first stage."""

    kind: ClassVar[str] = "extract"
    revision: ClassVar[int] = 3

    inputs: tuple[Input, ...] = Field(strict=False, min_length=1, description="inputs, each with a unique source name")
    shard_bytes: int = Field(
        default=256_000_000, ge=1, description="bytes of files per task; a larger file is its own task"
    )
    max_document_bytes: int = Field(
        default=64 << 20,
        ge=1 << 10,
        description="longer documents and JSON lines are quarantined, to bound memory",
    )
    max_page_seconds: float = Field(
        default=10.0, ge=0.1, le=3600, description="CPU seconds per web page; slower pages are quarantined"
    )
    recall_first: bool = Field(
        default=False, description="keep all running text of web pages and comments, not only the main part"
    )

    def steps(self, context: StageContext) -> list[Step]:
        files = [file for source in self.inputs for file in list_files(source)]
        return [ReadFiles(tuple(group(files, self.shard_bytes)), self._limits())]

    def _limits(self) -> "Limits":
        return Limits(self.max_document_bytes, self.max_page_seconds, self.recall_first)

    def check(self) -> Self:
        """Every input is there, and so is the package that reads it."""
        for source in self.inputs:
            for format_ in sorted({file.format for file in list_files(source)}):
                _reader(format_)
        return self

    def describe(self) -> str:
        return "extract: " + ", ".join(source.source for source in self.inputs)


@dataclass(frozen=True)
class Limits:
    """The options of the stage that readers need."""

    max_document_bytes: int
    page_seconds: float
    recall_first: bool


@dataclass(frozen=True)
class ReadFiles(Step):
    """Each task reads some files, in order, into one shard."""

    tasks: tuple[tuple[SourceFile, ...], ...]
    limits: Limits
    name: str = "documents"

    @property
    def num_tasks(self) -> int:  # type: ignore[override]
        return len(self.tasks)

    def reads(self, task: int) -> str:
        files = self.tasks[task]
        return f"{files[0].path}" + (f" and {len(files) - 1:,} more" if len(files) > 1 else "")

    def run(self, task: int, output: TaskOutput) -> None:
        with output.documents() as writer:
            for file in self.tasks[task]:
                if file.name in output.lost:
                    output.quarantine("killed its worker", file.name, detail=output.lost[file.name])
                    continue
                output.working_on(file.name)
                for batch in _documents_of(file, self.limits, output):
                    output.statistics.add_read(batch)
                    output.statistics.add_written(batch)
                    writer.write(batch)


def _documents_of(file: SourceFile, limits: Limits, output: TaskOutput) -> Iterator[DocumentBatch]:
    """What can be read of a file; it is put aside if it ends in damage, and what came before is kept."""
    counts = output.statistics.counts

    def count(what: str) -> None:
        counts[f"extract: {what}"] += 1

    context = Context(output.quarantine, count, limits.max_document_bytes, limits.page_seconds, limits.recall_first)
    num_documents, num_rejected = 0, sum(output.statistics.quarantined.values())
    try:
        if not file.size:
            output.quarantine("empty file", file.name)
            return
        for batch in read_file(file, context):
            num_documents += len(batch)
            yield batch
    except UnsuitableFileError as error:
        output.quarantine("unsuitable file", file.name, detail=str(error))
        return
    except DataError as error:
        output.quarantine("damaged file", file.name, detail=f"{error}; {num_documents:,} documents were read before it")
        return
    except MemoryError:
        output.quarantine("too large for memory", file.name, detail=f"{num_documents:,} documents were read before it")
        return
    if not num_documents and num_rejected == sum(output.statistics.quarantined.values()):
        count("files without a document")


def read_file(file: SourceFile, context: Context) -> Iterator[DocumentBatch]:
    """The documents of a file, by its format.

    Raises:
        DataError: after all that could be read: the rest of the file is damaged.
    """
    reader, in_batches = _reader(file.format)
    yield from reader(file, context) if in_batches else gather(reader(file, context), file, context)


def _reader(format_: str) -> tuple[Callable[[SourceFile, Context], Iterator[Any]], bool]:
    name, in_batches = _READERS[format_]
    module, _, function = name.partition(":")
    with needed_for(f"format '{format_}'"):
        return getattr(import_module(f"glmforge_corpus.extract.{module}"), function), in_batches
