"""What a pipeline is made of.

A *stage* is one entry of the pipeline file. It is carried out in *steps*, one after the other; a step is a set of
*tasks* that know nothing of each other and can run anywhere, in any order, at the same time. So a barrier stands
between steps and nowhere else: MinHash deduplication, say, is a step of signatures with a task per shard, one of
band files with a task per band, one that joins clusters, one that filters with a task per shard again.

A task reads files that earlier steps published and writes files into a directory of its own. The pipeline makes the
directory, publishes it whole, and never runs a task again that is published (`task.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from glmforge.config.model import Strict
from glmforge.data.documents.batch import BatchWriter, DocumentBatch, read_batches
from glmforge.data.files import printable
from glmforge_corpus.pipeline.statistics import Statistics, dump_json

DOCUMENTS = "documents.parquet"
"""The file in a task's directory that holds its documents."""

HELD_OUT = "held_out.parquet"
"""The file in a task's directory that holds documents set aside for evaluation; optional."""

JSONL = "documents.jsonl"
"""The file in a task's directory, with the suffix of its compression, that holds its documents as JSON; optional."""

QUARANTINE = "quarantine.jsonl"
"""The file in a task's directory that lists records which are not documents."""

REPORT = "report.json"
"""The file in a task's directory that holds more about it than counts, for the run's report; optional."""

WORKING_ON = "working_on"
"""The file in the directory of a task that runs which names the part that it is at."""


@dataclass
class TaskOutput:
    """Where a task puts what it makes.

    Attributes:
        directory: empty when the task begins; all in it is published when the task returns.
        statistics: what the task counts; stored beside its files.
        lost: parts of the task that are not to be touched, because processes died of them, and how; a step that tells
            its parts by `working_on` puts these aside.
    """

    directory: Path
    statistics: Statistics = field(default_factory=Statistics)
    lost: Mapping[str, str] = field(default_factory=dict)

    def working_on(self, part: str) -> None:
        """Say which part of the task comes next, such as a file: if its process is killed, this one is suspected."""
        path = self.directory / WORKING_ON
        if part:
            path.write_text(part, "utf-8")
        else:
            path.unlink(missing_ok=True)

    def documents(self) -> BatchWriter:
        """A writer of the task's shard of documents. A task of a step that passes documents on always opens one."""
        return BatchWriter(self.directory / DOCUMENTS)

    def quarantine(self, reason: str, where: str, data: bytes = b"", detail: str = "", num_records: int = 1) -> None:
        """Put aside what cannot be read: a line in the task's quarantine file, a count of records, a sample.

        Args:
            reason: kind of damage in a few words, such as "invalid UTF-8"; counted.
            where: file and place in it.
            data: the record or its beginning.
            detail: what exactly is wrong.
            num_records: how many records are lost with it, where one place holds several.
        """
        excerpt = data[:1000].decode(errors="backslashreplace")
        where, detail = printable(where), printable(detail)
        line = {"reason": reason, "where": where, "detail": detail, "record": excerpt}
        with (self.directory / QUARANTINE).open("ab") as file:
            file.write(dump_json(line).replace(b"\n", b"") + b"\n")
        self.statistics.add_quarantined(reason, where, excerpt, num_records)


class Step(ABC):
    """A set of independent tasks. Pickled to other processes and machines: holds options and paths, no data.

    Attributes:
        name: of the step's directory; unique in its stage.
        num_tasks: how many.
    """

    name: str
    num_tasks: int

    @abstractmethod
    def run(self, task: int, output: TaskOutput) -> None:
        """Do one task. What it writes must depend on its inputs alone: not on time, machine, or other tasks.

        Raises:
            DataError: the task cannot be done; the run ends. A bad record is no reason: `output.quarantine` it.
        """

    def reads(self, task: int) -> str:
        """What a task reads, in the words of an error."""
        return "the documents of all shards"


@dataclass(frozen=True)
class ShardStep(Step):
    """A step with a task per shard.

    Attributes:
        shards: what comes in.
    """

    shards: Sequence[Path]

    @property
    def num_tasks(self) -> int:  # type: ignore[override]
        return len(self.shards)

    def reads(self, task: int) -> str:
        return str(self.shards[task])


def pass_on(shard: Path, output: TaskOutput, process: Callable[[DocumentBatch, int], DocumentBatch]) -> None:
    """Send a shard's documents on: what `process(batch, row of its first document)` makes of each batch, counted."""
    first = 0
    with output.documents() as writer:
        for batch in read_batches(shard):
            output.statistics.add_read(batch)
            made = process(batch, first)
            first += len(batch)
            output.statistics.add_written(made)
            writer.write(made)


@dataclass(frozen=True)
class PerShard(ShardStep):
    """A step that sends each shard's documents on, batch by batch."""

    name: str = field(default="documents", kw_only=True)

    def run(self, task: int, output: TaskOutput) -> None:
        pass_on(self.shards[task], output, lambda batch, _: self.process(batch, output))

    @abstractmethod
    def process(self, batch: DocumentBatch, output: TaskOutput) -> DocumentBatch:
        """What goes on of a batch; it is counted as read and written already."""


@dataclass(frozen=True)
class StageContext:
    """Where a stage stands in a run.

    Attributes:
        directory: the stage's own; task t of step s publishes `directory / s / f"{t:05d}"`.
        shards: the documents that come in: one Parquet file per task of the step before. They exist when the steps
            run, not yet when they are made.
        seed: of the whole pipeline.
    """

    directory: Path
    shards: Sequence[Path]
    seed: int = 0

    def task_directory(self, step: str, task: int) -> Path:
        return task_directory(self.directory, step, task)


def task_directory(stage_directory: Path, step: str, task: int) -> Path:
    """Where a task's files are once it is done."""
    return stage_directory / step / f"{task:05d}"


class Stage(Strict, ABC):
    """One entry of a pipeline file; its fields are the options there.

    Attributes:
        kind: its name in a pipeline file, such as "minhash".
        revision: raise it when results change, so that finished tasks of older code are not taken for current ones.
    """

    kind: ClassVar[str]
    revision: ClassVar[int] = 1

    @abstractmethod
    def steps(self, context: StageContext) -> list[Step]:
        """What is to be done, in order. The last step passes documents on: each of its tasks writes one shard."""

    def check(self) -> Self:
        """Refuse what this machine lacks (a file, a package) before anything runs. Raises `DataError`."""
        return self

    def describe(self) -> str:
        """The stage in a few words, for the progress display and the report."""
        return self.kind
