"""The steps between band keys and clusters: candidate pairs, and which of them are similar."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glmforge_corpus.deduplicate.minhash.bands import candidates, unique_pairs
from glmforge_corpus.deduplicate.minhash.index import BUCKETS, SETS, SIGNATURES, SIMILARITY, Member
from glmforge_corpus.deduplicate.minhash.sets import open_sets, positions
from glmforge_corpus.deduplicate.minhash.similarity import jaccard_similarities, signature_similarities
from glmforge_corpus.deduplicate.places import Places, open_array, part_of_shard, rows_of, shards_of
from glmforge_corpus.pipeline.stage import Step, TaskOutput, task_directory

EARLIER, LATER, NEEDED, JACCARD = "earlier.npy", "later.npy", "needed.npy", "jaccard.npy"
SIGNATURE_FILE = "signatures.npy"


@dataclass(frozen=True)
class Buckets(Step):
    """A task per part of the key space: its candidate pairs, and the documents in them."""

    members: Sequence[Member]
    num_old: int
    num_tasks: int
    name: str = BUCKETS

    def outputs(self, stage: Path) -> tuple[Path, ...]:
        """The directories of the tasks, once they are done."""
        return tuple(task_directory(stage, self.name, task) for task in range(self.num_tasks))

    def run(self, task: int, output: TaskOutput) -> None:
        directories = [member.directory(SIGNATURES) for member in self.members]
        earlier, later = candidates(directories, task, self.num_tasks, self.num_old)
        np.save(output.directory / EARLIER, earlier)
        np.save(output.directory / LATER, later)
        np.save(output.directory / NEEDED, np.unique(np.concatenate([earlier, later])))


@dataclass(frozen=True)
class Similarity(Step):
    """A task per new shard: the candidate pairs whose later document is there, and are as similar as asked."""

    members: Sequence[Member]
    num_old: int
    buckets: Sequence[Path]
    threshold: float
    name: str = SIMILARITY

    @property
    def num_tasks(self) -> int:  # type: ignore[override]
        return len(self.members) - self.num_old

    def run(self, task: int, output: TaskOutput) -> None:
        shard = self.num_old + task
        earlier, later = self._candidates(shard)
        similar = np.zeros(len(earlier))
        for other, chosen in _by_shard(shards_of(earlier)):
            rows = rows_of(earlier[chosen]), rows_of(later[chosen])
            similar[chosen] = _compare(self.members[other], self.members[shard], *rows)
        kept = similar >= self.threshold
        np.save(output.directory / EARLIER, earlier[kept])
        np.save(output.directory / LATER, later[kept])
        np.save(output.directory / JACCARD, similar[kept].astype(np.float32))
        output.statistics.counts["minhash: candidate pairs"] += len(earlier)
        output.statistics.counts["minhash: similar pairs"] += int(kept.sum())

    def _candidates(self, shard: int) -> tuple[Places, Places]:
        """The pairs of all parts, each once; a pair may have agreed in several bands."""
        earlier, later = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for directory in self.buckets:
            numbers = open_array(directory / LATER)
            part = part_of_shard(numbers, shard)
            later.append(numbers[part])
            earlier.append(open_array(directory / EARLIER)[part])
        return unique_pairs(np.concatenate(earlier), np.concatenate(later))


def _by_shard(shards: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(shard, indices of its pairs in order)."""
    order = np.argsort(shards, kind="stable")
    numbers, starts = np.unique(shards[order], return_index=True)
    for number, chosen in zip(numbers, np.split(order, starts[1:]), strict=False):
        yield int(number), chosen


def _compare(
    earlier: Member, later: Member, earlier_rows: NDArray[np.int64], later_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    if not (earlier.sets and later.sets):
        stored = [open_array(member.directory(SIGNATURES) / SIGNATURE_FILE) for member in (earlier, later)]
        return signature_similarities(stored[0], earlier_rows, stored[1], later_rows)
    directories = earlier.directory(SETS), later.directory(SETS)
    return jaccard_similarities(
        open_sets(directories[0]),
        positions(directories[0], earlier_rows),
        open_sets(directories[1]),
        positions(directories[1], later_rows),
    )
