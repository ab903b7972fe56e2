"""The steps from band keys to similar pairs: candidates, then exact Jaccard similarity or estimates from signatures.

Sets are compared by a hash table per later text, against which all its partners are checked. Nothing in the table is
ever cleared: each slot knows for which text or pair it was filled, so that comparing a pair costs its shingles.
Distinct shingles are distinguished by 64 bits: in sets of a million each, a wrong match is a matter of 1 in 10^7.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.deduplicate.bands import candidates, unique_pairs
from glmforge_corpus.deduplicate.index import BUCKETS, SETS, SIGNATURES, SIMILARITY, Member
from glmforge_corpus.deduplicate.places import Places, open_array, part_of_shard, rows_of, shards_of
from glmforge_corpus.deduplicate.sets import open_sets, positions
from glmforge_corpus.pipeline.stage import Step, TaskOutput, task_directory

Sets = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Hashes of all texts end to end, with repetitions, and the borders `[n + 1]` of texts among them."""


def jaccard_similarities(
    earlier: Sets, earlier_rows: NDArray[np.int64], later: Sets, later_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Exact Jaccard similarity of each pair; fastest if pairs with the same later text stand together."""
    longest = (
        np.diff(borders)[rows].max(initial=0) for (_, borders), rows in ((earlier, earlier_rows), (later, later_rows))
    )
    size = 2 << (2 * sum(map(int, longest))).bit_length()
    return _jaccards(*earlier, earlier_rows, *later, later_rows, size)  # type: ignore[no-any-return]


@compiled
def _jaccards(hashes_a: Any, borders_a: Any, rows_a: Any, hashes_b: Any, borders_b: Any, rows_b: Any, size: int) -> Any:
    keys, owner, seen = np.empty(size, np.uint64), np.zeros(size, np.int32), np.zeros(size, np.int32)
    out = np.empty(len(rows_a), np.float64)
    epoch = text = num_b = 0
    current = -1
    mask = np.uint64(0)
    for pair in range(len(rows_a)):
        if rows_b[pair] != current:
            current = rows_b[pair]
            mask = _mask(borders_a, rows_a, borders_b, rows_b, pair)
            epoch += 1
            text = epoch
            num_b = 0
            for k in range(borders_b[current], borders_b[current + 1]):
                key = hashes_b[k]
                slot = key & mask
                while owner[slot] == text and keys[slot] != key:
                    slot = (slot + np.uint64(1)) & mask
                if owner[slot] != text:
                    owner[slot], keys[slot] = text, key
                    num_b += 1
        epoch += 1
        common = only_a = 0
        for k in range(borders_a[rows_a[pair]], borders_a[rows_a[pair] + 1]):
            key = hashes_a[k]
            slot = key & mask
            while (owner[slot] == text or owner[slot] == epoch) and keys[slot] != key:
                slot = (slot + np.uint64(1)) & mask
            if owner[slot] == text:
                if seen[slot] != epoch:
                    seen[slot] = epoch
                    common += 1
            elif owner[slot] != epoch:
                owner[slot], keys[slot] = epoch, key
                only_a += 1
        union = num_b + only_a
        out[pair] = common / union if union else 0.0
    return out


@compiled
def _mask(borders_a: Any, rows_a: Any, borders_b: Any, rows_b: Any, pair: int) -> Any:
    """As much of the table as a text and the largest of its partners fill by half: a small part stays in cache."""
    text = rows_b[pair]
    largest = 0
    while pair < len(rows_b) and rows_b[pair] == text:
        largest = max(largest, borders_a[rows_a[pair] + 1] - borders_a[rows_a[pair]])
        pair += 1
    needed, size = 2 * (largest + borders_b[text + 1] - borders_b[text]), 1
    while size <= needed:
        size *= 2
    return np.uint64(size - 1)


def signature_similarities(
    earlier: NDArray[np.uint32],
    earlier_rows: NDArray[np.int64],
    later: NDArray[np.uint32],
    later_rows: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The share of equal entries: an estimate of J with a standard deviation of sqrt(J (1 - J) / entries)."""
    return _equal_shares(earlier, earlier_rows, later, later_rows)  # type: ignore[no-any-return]


@compiled
def _equal_shares(a: Any, rows_a: Any, b: Any, rows_b: Any) -> Any:
    out = np.empty(len(rows_a), np.float64)
    for pair in range(len(rows_a)):
        equal = 0
        for k in range(a.shape[1]):
            equal += a[rows_a[pair], k] == b[rows_b[pair], k]
        out[pair] = equal / a.shape[1]
    return out


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
