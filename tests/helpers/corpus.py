"""Documents and stages for tests of the corpus room; in a module, so that worker processes can import them."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from glmforge.data.documents.batch import DocumentBatch, read_batches
from glmforge.errors import DataError
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.extract import stage
from glmforge_corpus.extract.inputs import SourceFile
from glmforge_corpus.extract.records import Context
from glmforge_corpus.extract.stage import Extract, ReadFiles, read_file
from glmforge_corpus.pipeline.stage import Stage, StageContext, Step, TaskOutput


def batch_of(texts, source="test", **columns) -> DocumentBatch:
    """Documents "0", "1", ... with these texts."""
    return DocumentBatch.from_columns([str(i) for i in range(len(texts))], texts, source, **columns)


def texts_of(shards) -> list[str]:
    return [text for shard in shards for batch in read_batches(shard) for text in batch.texts]


class Numbers(Stage):
    """Makes shards of documents that say numbers; a task may be told to fail while a file exists."""

    kind: ClassVar[str] = "numbers"
    shards: int = 3
    documents: int = 10
    fail_task: int = -1
    fail_while: str = ""

    def steps(self, context: StageContext) -> list[Step]:
        return [_Numbers(self.shards, self.documents, self.fail_task, self.fail_while)]


@dataclass(frozen=True)
class _Numbers(Step):
    num_tasks: int
    documents: int
    fail_task: int
    fail_while: str
    name: str = "documents"

    def run(self, task: int, output: TaskOutput) -> None:
        ids = [f"{task}/{i}" for i in range(self.documents)]
        batch = DocumentBatch.from_columns(ids, [f"this is number {id_}" for id_ in ids], "numbers")
        with output.documents() as writer:
            writer.write(batch)
            if task == self.fail_task and Path(self.fail_while).exists():
                raise DataError("told to fail")
        output.quarantine("no number", f"somewhere:{task}", b"\xff\x00", "as planned")
        output.statistics.add_written(batch)


class Stuck(Stage):
    """Numbers, but while a file exists all tasks but the first say so on stderr and never end.

    They also say whether they are deaf to Ctrl-C.
    """

    kind: ClassVar[str] = "stuck"
    shards: int = 4
    stuck_while: str = ""

    def steps(self, context: StageContext) -> list[Step]:
        return [_Stuck(self.shards, 10, -1, "", stuck_while=self.stuck_while)]


@dataclass(frozen=True)
class _Stuck(_Numbers):
    stuck_while: str = ""

    def run(self, task: int, output: TaskOutput) -> None:
        if task and Path(self.stuck_while).exists():
            deaf = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            os.write(2, b"never ends, deaf\n" if deaf else b"never ends\n")
            while True:
                time.sleep(0.1)  # not for ever in one call: a signal just before it would be missed
        super().run(task, output)


class Shout(Block):
    """Upper case; documents that end in one of `refuse` are removed."""

    kind: ClassVar[str] = "shout"
    refuse: tuple[str, ...] = ()

    def process(self, batch: DocumentBatch) -> Outcome:
        texts = batch.texts
        failed = {f"shout: ends in {end}": np.array([text.endswith(end) for text in texts]) for end in self.refuse}
        shouted = batch.with_texts(pa.array([text.upper() for text in texts], pa.large_string()))
        return Outcome(shouted.with_score("loud", np.linspace(0, 1, len(batch))), failed, {"shouts": len(batch)})


class Deadly(Extract):
    """Reads files, and dies of those that are called deadly: each time, or once (whoever dies first leaves a mark)."""

    kind: ClassVar[str] = "deadly"

    def steps(self, context: StageContext) -> list[Step]:
        (step,) = super().steps(context)
        assert isinstance(step, ReadFiles)
        return [_Deadly(step.tasks, step.limits)]


@dataclass(frozen=True)
class _Deadly(ReadFiles):
    def run(self, task: int, output: TaskOutput) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage, "read_file", _read_or_die)
            super().run(task, output)


def _read_or_die(file: SourceFile, context: Context) -> Iterator[DocumentBatch]:
    for batch in read_file(file, context):
        yield batch
        mark = file.path.with_name(f".{file.path.name}.died")
        if "deadly" in file.path.name and not (file.path.name.startswith("once") and mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyBlock(Block):
    """Dies of documents that say so; a process that dies here was at no file."""

    kind: ClassVar[str] = "deadly_block"

    def process(self, batch: DocumentBatch) -> Outcome:
        if any("deadly" in text for text in batch.texts):
            os.kill(os.getpid(), signal.SIGSEGV)
        return Outcome(batch, {}, {})
