"""The step that joins similar pairs to clusters and chooses which document of each cluster stays.

It writes, for readers of the run's report: `pairs.parquet` (id_a, id_b, jaccard) of every pair that was found
similar, `clusters.parquet` (cluster, id, kept; the cluster is named by the id of its first document) and counts in
`report.json`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from glmforge.data.compiled import compiled
from glmforge_corpus.deduplicate.index import CLUSTERS, INDEX, SETS, SIMILARITY, IndexInfo, Member
from glmforge_corpus.deduplicate.places import Places, open_array, part_of_shard, rows_of
from glmforge_corpus.deduplicate.sets import ids_at, positions, weights_at
from glmforge_corpus.deduplicate.similarity import EARLIER, JACCARD, LATER
from glmforge_corpus.pipeline.stage import REPORT, Step, TaskOutput
from glmforge_corpus.pipeline.statistics import dump_json


class Clusters(NamedTuple):
    """Texts that are joined by pairs, directly or through others.

    Attributes:
        members: `[m]` places, sorted; a text without a partner is not among them.
        cluster: `[m]` each member's cluster, named by the index in `members` of its first text.
    """

    members: Places
    cluster: NDArray[np.int64]


def join(earlier: Places, later: Places) -> Clusters:
    """The connected components of pairs, by union-find; memory grows with the texts that have a partner."""
    members = np.unique(np.concatenate([earlier, later]))
    a, b = np.searchsorted(members, earlier), np.searchsorted(members, later)
    return Clusters(members, _components(a, b, len(members)))


@compiled
def _components(a: Any, b: Any, count: int) -> Any:
    """`[count]`: the least index of each node's component."""
    parent = np.arange(count)
    for edge in range(len(a)):
        x, y = _root(parent, a[edge]), _root(parent, b[edge])
        parent[max(x, y)] = min(x, y)
    for node in range(count):
        parent[node] = _root(parent, node)
    return parent


@compiled
def _root(parent: Any, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]  # halve the path
        node = parent[node]
    return node


def removed(clusters: Clusters, weights: NDArray[np.float64], num_old: int) -> NDArray[np.bool_]:
    """`[m]`: which members go. Of each cluster the heaviest stays, of equals the first.

    Args:
        clusters: what `join` made.
        weights: `[m]` of each member; NaN counts as least.
        num_old: shards below this number belong to an index: their texts are in the corpus already, so that nothing
            new of their clusters stays, whatever its score.
    """
    weights = np.where(np.isnan(weights), -np.inf, weights)
    is_old = clusters.members < np.uint64(num_old << 32)
    order = np.lexsort((clusters.members, -weights, ~is_old, clusters.cluster))
    ordered = clusters.cluster[order]
    best = np.ones(len(order), np.bool_)
    best[1:] = ordered[1:] != ordered[:-1]
    gone = np.ones(len(order), np.bool_)
    gone[order[best]] = False
    return gone & ~is_old


REMOVED, PAIRS, MEMBERS = "removed.npy", "pairs.parquet", "clusters.parquet"


@dataclass(frozen=True)
class Selection(Step):
    """One task: all similar pairs -> clusters -> what is removed."""

    members: Sequence[Member]
    num_old: int
    index: IndexInfo | None
    name: str = CLUSTERS
    num_tasks: int = 1

    def run(self, task: int, output: TaskOutput) -> None:
        earlier, later, similar = (self._gather(name) for name in (EARLIER, LATER, JACCARD))
        clusters = join(earlier, later)
        weights = self._look_up(clusters.members, weights_at, np.zeros(len(clusters.members)))
        gone = removed(clusters, weights, self.num_old)
        np.save(output.directory / REMOVED, clusters.members[gone])
        self._report(output, clusters, gone, (earlier, later, similar))
        if self.index is not None:
            (output.directory / INDEX).write_bytes(self.index.to_json())

    def _gather(self, name: str) -> NDArray[Any]:
        new = self.members[self.num_old :]
        kind = np.float32 if name == JACCARD else np.uint64
        return np.concatenate([np.zeros(0, kind), *(open_array(member.directory(SIMILARITY) / name) for member in new)])

    def _look_up(
        self, numbers: Places, read: Callable[[Path, NDArray[np.int64]], Any], out: NDArray[Any]
    ) -> NDArray[Any]:
        """What `read` finds for sorted places, shard by shard, in `out`."""
        for shard, member in enumerate(self.members):
            part = part_of_shard(numbers, shard)
            if part.stop > part.start:
                directory = member.directory(SETS)
                out[part] = read(directory, positions(directory, rows_of(numbers[part])))
        return out

    def _report(
        self,
        output: TaskOutput,
        clusters: Clusters,
        gone: NDArray[np.bool_],
        pairs: tuple[Places, Places, NDArray[np.float32]],
    ) -> None:
        names = pa.array(self._look_up(clusters.members, ids_at, np.empty(len(gone), object)), pa.string())
        first, second = (names.take(pa.array(np.searchsorted(clusters.members, part))) for part in pairs[:2])
        table = {"id_a": first, "id_b": second, "jaccard": pa.array(pairs[2])}
        parquet.write_table(pa.table(table), output.directory / PAIRS, compression="zstd")
        order = np.argsort(clusters.cluster, kind="stable")
        columns = {
            "cluster": names.take(pa.array(clusters.cluster[order])),
            "id": names.take(pa.array(order)),
            "kept": pa.array(~gone[order]),
        }
        parquet.write_table(pa.table(columns), output.directory / MEMBERS, compression="zstd")
        sizes = np.unique(clusters.cluster, return_counts=True)[1]
        counts = {
            "pairs": len(pairs[2]),
            "clusters": len(sizes),
            "documents in clusters": len(gone),
            "duplicates": int(gone.sum()),
            "largest cluster": int(sizes.max(initial=0)),
        }
        output.statistics.counts.update(
            {f"minhash: {name}": count for name, count in counts.items() if name != "pairs"}
        )
        histogram = np.bincount(np.minimum(sizes, 100))
        by_size = {str(size): int(count) for size, count in enumerate(histogram) if count}
        (output.directory / REPORT).write_bytes(dump_json(counts | {"clusters by size (100: and more)": by_size}))
