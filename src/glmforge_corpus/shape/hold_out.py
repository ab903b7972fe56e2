"""The stage that sets documents aside for evaluation, by a hash of their ids."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import BatchWriter, DocumentBatch, read_batches
from glmforge.data.documents.document import is_held_out
from glmforge_corpus.pipeline.stage import HELD_OUT, PerShard, Stage, StageContext, Step, TaskOutput


class HoldOut(Stage):
    """Documents set aside are written to `held_out/` of the run; the others go on.

    Which ones they are depends on their ids and the seed alone: a document that is held out stays so when the corpus
    grows, when the fraction is raised, and in `glmforge data tokenize --held-out`. Put the stage behind deduplication:
    a near copy of a held-out document among the others would make evaluation easy.
    """

    kind: ClassVar[str] = "hold_out"
    fraction: float = Field(gt=0, lt=1, description="share of the documents to set aside")

    def steps(self, context: StageContext) -> list[Step]:
        return [_Split(tuple(context.shards), self.fraction, context.seed)]

    def describe(self) -> str:
        return f"hold out {self.fraction:.2%}"


@dataclass(frozen=True)
class _Split(PerShard):
    fraction: float
    seed: int

    def run(self, task: int, output: TaskOutput) -> None:
        with BatchWriter(output.directory / HELD_OUT) as aside:
            for batch in read_batches(self.shards[task]):
                aside.write(batch.keep(self._held_out(batch)))
        super().run(task, output)

    def process(self, batch: DocumentBatch, output: TaskOutput) -> DocumentBatch:
        held_out = self._held_out(batch)
        output.statistics.counts["documents held out"] += int(held_out.sum())
        return batch.keep(~held_out)

    def _held_out(self, batch: DocumentBatch) -> NDArray[np.bool_]:
        return np.array([is_held_out(id_, self.fraction, self.seed) for id_ in batch.ids], bool)
