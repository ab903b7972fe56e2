"""The stage that sends every document through a chain of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Block
from glmforge_corpus.pipeline.stage import PerShard, Stage, StageContext, Step, TaskOutput
from glmforge_corpus.pipeline.statistics import Statistics


class Clean(Stage):
    """Blocks in the order given; a document that one of them removes does not reach the next.

    Attributes:
        blocks: the chain. In a pipeline file, `clean` is followed by the list itself.
    """

    kind: ClassVar[str] = "clean"
    blocks: tuple[Block, ...]

    def steps(self, context: StageContext) -> list[Step]:
        return [_Chain(tuple(context.shards), self.blocks, removes=True)]

    def check(self) -> Self:
        for block in self.blocks:
            block.check()
        return self

    def describe(self) -> str:
        return f"{self.kind}: " + ", ".join(block.kind for block in self.blocks)


class Analyze(Clean):
    """The same blocks, whose verdicts are counted while every document goes on as it came, with its scores added."""

    kind: ClassVar[str] = "analyze"

    def steps(self, context: StageContext) -> list[Step]:
        return [_Chain(tuple(context.shards), self.blocks, removes=False)]


@dataclass(frozen=True)
class _Chain(PerShard):
    blocks: Sequence[Block]
    removes: bool

    def process(self, batch: DocumentBatch, output: TaskOutput) -> DocumentBatch:
        return (run_blocks if self.removes else judge)(self.blocks, batch, output.statistics)


def run_blocks(blocks: Sequence[Block], batch: DocumentBatch, statistics: Statistics) -> DocumentBatch:
    """What is left of a batch after all blocks; what they removed is counted under "block: rule"."""
    for block in blocks:
        outcome = block.process(batch)
        batch = outcome.batch
        statistics.counts.update(outcome.counts)
        reason = np.full(len(batch), -1)
        for index, (rule, failed) in enumerate(outcome.failed.items()):
            statistics.failed[rule] += int(failed.sum())
            reason[(reason < 0) & failed] = index
        for index, rule in enumerate(outcome.failed):
            statistics.add_removed(rule, batch, np.flatnonzero(reason == index))
        batch = batch.keep(reason < 0)
    return batch


def judge(blocks: Sequence[Block], batch: DocumentBatch, statistics: Statistics) -> DocumentBatch:
    """The whole batch with the blocks' scores and languages and with its own texts; failures are counted only.

    Each block sees what the one before made of the texts, as it would in `run_blocks`.
    """
    judged = batch
    for block in blocks:
        outcome = block.process(judged)
        judged = outcome.batch
        statistics.counts.update(outcome.counts)
        for rule, failed in outcome.failed.items():
            statistics.failed[rule] += int(failed.sum())
            statistics.add_sample(rule, judged, np.flatnonzero(failed))
    return judged.with_texts(batch.table.column("text"))
