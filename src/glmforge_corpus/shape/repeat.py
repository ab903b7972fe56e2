"""The stage that repeats documents as often as their score says: up-sampling in place."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xxhash
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.pipeline.stage import PerShard, Stage, StageContext, Step, TaskOutput


class Repeat(Stage):
    """Copies each document as often as its score `repeat` says, which the block `quality` gives by bucket.

    A score of 2.3 makes two copies of every such document and a third one of three in ten, chosen by a hash of the
    id; 0 leaves a document out, none at all means once. Copies are written next to each other and spread by the
    loader's order. For corpora too large to copy, tokenise buckets apart and give them weights in `data mix`.
    """

    kind: ClassVar[str] = "repeat"
    most: int = Field(default=10, ge=1, description="most copies of a document")

    def steps(self, context: StageContext) -> list[Step]:
        return [_Copy(tuple(context.shards), self.most)]


@dataclass(frozen=True)
class _Copy(PerShard):
    most: int

    def process(self, batch: DocumentBatch, output: TaskOutput) -> DocumentBatch:
        copies = repeat(batch, self.most)
        output.statistics.counts["copies made"] += max(0, len(copies) - len(batch))
        return copies


def repeat(batch: DocumentBatch, most: int) -> DocumentBatch:
    """The batch with its documents repeated; the second copy of `a` has the id `a~2`."""
    ids = batch.ids
    wanted = np.nan_to_num(batch.score("repeat"), nan=1.0).clip(0, most)
    chance = np.array([xxhash.xxh3_64_intdigest(id_.encode(), _SEED) for id_ in ids], np.uint64) / 2.0**64
    times = (wanted + chance).astype(np.int64)  # floor(w + u) is floor(w) or, with the chance of w's fraction, one more
    rows = np.repeat(np.arange(len(batch)), times)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
    named = [ids[row] if copy == 0 else f"{ids[row]}~{copy + 1}" for row, copy in zip(rows, number, strict=True)]
    return batch.take(rows).with_ids(named)


_SEED = 0x7265706561  # another hash than that of samples and held-out parts, or they would choose the same documents
