"""The stage that keeps a sample, the same one regardless of the shards, workers and machines."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import Field, model_validator

from glmforge.config.model import refuse
from glmforge.data.documents.batch import DocumentBatch, read_batches
from glmforge_corpus.pipeline.stage import PerShard, ShardStep, Stage, StageContext, Step, TaskOutput

_KEYS = "keys.npz"


class Sample(Stage):
    """Documents chosen by a hash of their ids: a share of them, or a number, of all or of each language or source.

    A number of documents is exact: a first step gathers the smallest hashes of each group, so that a corpus with
    fewer documents in a group gives all of them.
    """

    kind: ClassVar[str] = "sample"
    fraction: float | None = Field(default=None, gt=0, le=1, description="share of the documents to keep")
    documents: int | None = Field(default=None, ge=1, description="number of documents to keep per group")
    by: Literal["all", "language", "source"] = Field(default="all", description="what a group is")

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if (self.fraction is None) == (self.documents is None):
            refuse("fraction", "set either a fraction or a number of documents")
        return self

    def steps(self, context: StageContext) -> list[Step]:
        shards = tuple(context.shards)
        if self.fraction is not None:
            return [_Keep(shards, context.seed, self.by, self.fraction)]
        assert self.documents is not None
        keys = tuple(context.task_directory("keys", task) / _KEYS for task in range(len(shards)))
        limits = context.task_directory("limits", 0) / _KEYS
        return [
            _Smallest(shards, context.seed, self.by, self.documents),
            _Limits(keys, self.documents),
            _Keep(shards, context.seed, self.by, None, limits),
        ]

    def describe(self) -> str:
        size = f"{self.fraction:.2%}" if self.fraction is not None else f"{self.documents:,} documents"
        return f"sample {size}" + ("" if self.by == "all" else f" of each {self.by}")


@dataclass(frozen=True)
class _Smallest(ShardStep):
    """Per shard and group, the smallest hashes: what may be in the sample."""

    seed: int
    by: str
    documents: int
    name: str = "keys"

    def run(self, task: int, output: TaskOutput) -> None:
        smallest: dict[str, NDArray[np.uint64]] = {}
        for batch in read_batches(self.shards[task], _columns(self.by)):
            keys, groups = _keys(batch, self.seed), _groups(batch, self.by)
            for group in set(groups.tolist()):
                found = np.concatenate([smallest.get(group, keys[:0]), keys[groups == group]])
                smallest[group] = np.sort(found)[: self.documents]
        np.savez(output.directory / _KEYS, allow_pickle=False, **dict(sorted(smallest.items())))


@dataclass(frozen=True)
class _Limits(Step):
    """Per group, the largest hash in the sample."""

    keys: Sequence[Path]
    documents: int
    num_tasks: int = 1
    name: str = "limits"

    def run(self, task: int, output: TaskOutput) -> None:
        smallest: dict[str, NDArray[np.uint64]] = {}
        for path in self.keys:
            with np.load(path) as stored:
                for group in stored.files:
                    found = np.concatenate([smallest.get(group, stored[group][:0]), stored[group]])
                    smallest[group] = np.sort(found)[: self.documents]
        limits = {group: keys[-1:] for group, keys in sorted(smallest.items())}
        np.savez(output.directory / _KEYS, allow_pickle=False, **limits)


@dataclass(frozen=True)
class _Keep(PerShard):
    seed: int
    by: str
    fraction: float | None
    limits: Path | None = None

    def process(self, batch: DocumentBatch, output: TaskOutput) -> DocumentBatch:
        keys = _keys(batch, self.seed)
        if self.fraction is not None:
            return batch.keep(keys < np.uint64(min(int(self.fraction * 2**64), 2**64 - 1)))
        assert self.limits is not None
        with np.load(self.limits) as stored:
            limits = {group: stored[group][0] for group in stored.files}
        return batch.keep(keys <= np.array([limits[group] for group in _groups(batch, self.by).tolist()], np.uint64))


def _columns(by: str) -> list[str]:
    """The text is not needed to choose, but a batch needs it."""
    return ["id", *({"all": [], "language": ["language"], "source": ["source"]}[by])]


def _keys(batch: DocumentBatch, seed: int) -> NDArray[np.uint64]:
    return np.array([xxhash.xxh3_64_intdigest(id_.encode(), seed) for id_ in batch.ids], np.uint64)


def _groups(batch: DocumentBatch, by: str) -> NDArray[np.str_]:
    if by == "all":
        return np.full(len(batch), "all")
    return np.array(batch.table.column(by).fill_null("unknown").to_pylist(), np.str_)
