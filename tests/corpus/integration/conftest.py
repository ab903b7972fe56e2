"""Shards of documents, and stages run on them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from glmforge.data.documents.batch import BatchWriter, DocumentBatch, read_batches
from glmforge_corpus.pipeline.stage import DOCUMENTS, Stage, StageContext
from glmforge_corpus.pipeline.statistics import Statistics
from glmforge_corpus.pipeline.task import DONE, PlannedStep, run_task


class Ran(NamedTuple):
    """A finished stage."""

    directory: Path
    shards: list[Path]
    statistics: Statistics

    def documents(self) -> list[tuple[str, str]]:
        """(id, text) of what the stage handed on."""
        return [pair for shard in self.shards for batch in read_batches(shard) for pair in zip(batch.ids, batch.texts)]  # noqa: B905

    @property
    def ids(self) -> list[str]:
        return [name for name, _ in self.documents()]

    def checksums(self) -> dict[str, Any]:
        """Of every file, by its path."""
        done = sorted(self.directory.rglob(DONE))
        return {str(path.relative_to(self.directory)): json.loads(path.read_bytes())["files"] for path in done}


WriteShards = Callable[..., list[Path]]
RunStage = Callable[..., Ran]


@pytest.fixture
def write_shards(tmp_path: Path) -> WriteShards:
    """Shards from lists of texts or (id, text); ids are "shard.row" if not given."""

    def write(
        shards: Sequence[Sequence[Any]], name: str = "in", scores: Sequence[Sequence[float]] | None = None, cut: int = 0
    ) -> list[Path]:
        paths = []
        for number, documents in enumerate(shards):
            pairs = [doc if isinstance(doc, tuple) else (f"{number}.{row}", doc) for row, doc in enumerate(documents)]
            batch = DocumentBatch.from_columns([i for i, _ in pairs], [t for _, t in pairs], "test")
            if scores is not None:
                batch = batch.with_score("quality", np.array(scores[number]))
            paths.append(tmp_path / name / f"{number:05d}" / DOCUMENTS)
            paths[-1].parent.mkdir(parents=True)
            with BatchWriter(paths[-1]) as writer:
                for start in range(0, len(batch), cut or max(len(batch), 1)):
                    writer.write(batch.slice(start, min(start + (cut or len(batch)), len(batch))))
        return paths

    return write


@pytest.fixture
def run_stage(tmp_path: Path) -> RunStage:
    """Carry a stage out; `backwards` does the tasks of each step in the opposite order."""

    def run(stage: Stage, shards: Sequence[Path], name: str = "stage", backwards: bool = False) -> Ran:
        directory, total = tmp_path / name, Statistics()
        stage.check()
        last: list[Path] = []
        for step in stage.steps(StageContext(directory, shards)):
            planned = PlannedStep(step, directory, "fingerprint")
            for task in sorted(range(step.num_tasks), reverse=backwards):
                run_task(planned, task)
                total.merge(planned.statistics(task))
            last = [planned.task_directory(task) / DOCUMENTS for task in range(step.num_tasks)]
        return Ran(directory, last, total)

    return run
