"""The stage that removes documents which say the same as another one, by their embeddings.

SemDeDup (Abbas et al. 2023, arXiv:2303.09540): embed every document, cluster the embeddings by spherical k-means,
compare within clusters only, keep one of each group of near documents. Departures: a document is removed only if it
is near one that is *kept* (`neighbours.find_leaders`), where the paper removes what is near any earlier one, kept or
not; and which one is kept is an option.

Steps: `embed` (a task per shard) -> `centroids` (one task, on a sample) -> `assign` (per shard) -> `pairs` (as many
tasks as shards, each with a range of clusters) -> `documents` (per shard). A task holds one shard's embeddings, or
those of its clusters from all shards, which is as much on average. Embeddings are stored as float16: cosines are kept
within 0.001.

`embedder` is the word `lexical` (words in common, no meaning; needs nothing), a directory of a
sentence-transformers model (`sentence_model.py`), or the URL of an OpenAI-compatible endpoint
(`embedding_endpoint.py`).
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch, read_batches
from glmforge.errors import DataError
from glmforge.extras import needed_for
from glmforge_corpus.deduplicate.embedder import Embedder, EmbedderOptions, LexicalEmbedder, normalise
from glmforge_corpus.deduplicate.neighbours import assign, default_num_clusters, find_leaders, spherical_k_means
from glmforge_corpus.deduplicate.places import open_array
from glmforge_corpus.pipeline.stage import Stage, StageContext, Step, TaskOutput, pass_on, task_directory

Keep = Literal["first", "best", "farthest"]

COPIES = "copies.parquet"
"""Table of what is removed, and for which document's sake; columns `SCHEMA`."""

SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("row", pa.int64()),
        pa.field("document", pa.string()),
        pa.field("kept_document", pa.string()),
        pa.field("similarity", pa.float32()),
        pa.field("cluster", pa.int32()),
    ]
)

SAMPLE_PER_CLUSTER = 64
MIN_SAMPLE = 20_000
TOLERANCE = 1e-6
"""Of a cosine in single precision: equal texts pass a threshold of 1."""

_EMBED, _CENTROIDS, _ASSIGN, _PAIRS, _FILTER = "embed", "centroids", "assign", "pairs", "documents"


class Semantic(Stage, EmbedderOptions):
    """Remove documents that say the same as another."""

    kind: ClassVar[str] = "semantic"
    threshold: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="cosine similarity above which two documents are duplicates; try it with check_only first",
    )
    num_clusters: int | None = Field(
        default=None,
        ge=1,
        description="clusters of k-means (default: 2,048 documents each, or the square root of their number)",
    )
    keep: Keep = Field(
        default="first",
        description="copy to keep: the first in corpus order, the one with the best `score`, or the farthest from "
        "its cluster's centroid (SemDeDup: the least typical)",
    )
    score: str = Field(default="quality", description="score used by `keep: best`")
    check_only: bool = Field(default=False, description="only report duplicates")

    def steps(self, context: StageContext) -> list[Step]:
        place = _Place(self, context.directory, tuple(context.shards), context.seed)
        return [_Embed(place), _Centroids(place), _Assign(place), _Pairs(place), _Filter(place)]

    def check(self) -> Self:
        check_embedder(self)
        return self

    def describe(self) -> str:
        return f"semantic: {self.embedder}, cosine >= {self.threshold}" + (", check only" if self.check_only else "")


@dataclass(frozen=True)
class _Place:
    """What all steps know."""

    stage: Semantic
    directory: Path
    shards: Sequence[Path]
    seed: int

    def file(self, step: str, task: int, name: str) -> Path:
        return task_directory(self.directory, step, task) / name

    def embeddings(self, shard: int) -> NDArray[np.float16]:
        """`[n, d]` of a shard's documents, mapped from disk."""
        return open_array(self.file(_EMBED, shard, "embeddings.npy"))


@dataclass(frozen=True)
class _Step(Step):
    place: _Place

    @property
    def num_tasks(self) -> int:  # type: ignore[override]
        return len(self.place.shards)


@dataclass(frozen=True)
class _Embed(_Step):
    """Task: embeddings of a shard, `embeddings.npy` [n, d] float16, with ids and, if requested, scores."""

    name: str = _EMBED

    def run(self, task: int, output: TaskOutput) -> None:
        stage, shard = self.place.stage, self.place.shards[task]
        embedder = make_embedder(_embedder_options(stage))
        count = parquet.read_metadata(shard).num_rows
        vectors = np.lib.format.open_memmap(
            output.directory / "embeddings.npy", "w+", np.float16, (count, embedder.dim)
        )
        score = ("score_" + stage.score,) if stage.keep == "best" else ()
        scores, first = np.zeros(count, np.float32), 0
        for batch in read_batches(shard, ("id", "text", *score)):
            rows = slice(first, first + len(batch))
            vectors[rows] = embedder.embed(batch)
            if score:
                scores[rows] = np.nan_to_num(batch.score(stage.score), nan=-np.inf)
            first += len(batch)
        vectors.flush()
        np.save(output.directory / "scores.npy", scores)


def _embedder_options(stage: Semantic) -> EmbedderOptions:
    return EmbedderOptions(**{name: getattr(stage, name) for name in EmbedderOptions.model_fields})


@dataclass(frozen=True)
class _Centroids(_Step):
    """One task: `centroids.npy` [k, d] from a sample of all shards."""

    name: str = _CENTROIDS

    @property
    def num_tasks(self) -> int:  # type: ignore[override]
        return 1

    def run(self, task: int, output: TaskOutput) -> None:
        counts = [len(self.place.embeddings(shard)) for shard in range(len(self.place.shards))]
        total = sum(counts)
        num_clusters = min(self.place.stage.num_clusters or default_num_clusters(total), max(1, total))
        sample = self._sample(counts, min(total, max(MIN_SAMPLE, SAMPLE_PER_CLUSTER * num_clusters)))
        centroids = spherical_k_means(sample, num_clusters, self.place.seed)
        np.save(output.directory / "centroids.npy", centroids)
        output.statistics.counts["clusters"] = len(centroids)

    def _sample(self, counts: Sequence[int], size: int) -> NDArray[np.float32]:
        """`[size, d]`, drawn without replacement from all shards, in the corpus's order."""
        generator = np.random.default_rng(self.place.seed)
        rows = np.sort(generator.choice(sum(counts), size, replace=False))
        ends = np.cumsum(counts)
        parts = []
        for shard, end in enumerate(ends):
            here = rows[(rows >= end - counts[shard]) & (rows < end)] - (end - counts[shard])
            parts.append(self.place.embeddings(shard)[here].astype(np.float32))
        if len({part.shape[1] for part in parts}) > 1:
            raise DataError("embedding widths differ between shards; was the endpoint's model changed?")
        return normalise(np.concatenate(parts))


@dataclass(frozen=True)
class _Assign(_Step):
    """Task: rows of a shard sorted by cluster (`rows.npy`), where clusters begin, each row's cosine to its centroid."""

    name: str = _ASSIGN

    def run(self, task: int, output: TaskOutput) -> None:
        vectors = self.place.embeddings(task)
        centroids = open_array(self.place.file(_CENTROIDS, 0, "centroids.npy"))
        nearest = np.empty(len(vectors), np.int32)
        similarity = np.empty(len(vectors), np.float32)
        for start in range(0, len(vectors), 1 << 16):
            block = slice(start, start + (1 << 16))
            nearest[block], similarity[block] = assign(normalise(vectors[block].astype(np.float32)), centroids)
        starts = np.concatenate([[0], np.cumsum(np.bincount(nearest, minlength=len(centroids)))])
        np.save(output.directory / "rows.npy", np.argsort(nearest, kind="stable"))
        np.save(output.directory / "starts.npy", starts)
        np.save(output.directory / "similarity.npy", similarity)


@dataclass(frozen=True)
class _Pairs(_Step):
    """Task: copies in a range of clusters, `COPIES`, by shard and row."""

    name: str = _PAIRS

    def run(self, task: int, output: TaskOutput) -> None:
        num_clusters = len(open_array(self.place.file(_CENTROIDS, 0, "centroids.npy")))
        low, high = (num_clusters * bound // self.num_tasks for bound in (task, task + 1))
        members = _in_order([self._members(shard, low, high) for shard in range(len(self.place.shards))])
        bounds = np.searchsorted(members.clusters, np.arange(low, high + 1))
        threshold = self.place.stage.threshold - TOLERANCE
        copies = [_copies(members, *bound, threshold) for bound in itertools.pairwise(bounds.tolist())]
        merged = pa.concat_tables([SCHEMA.empty_table(), *copies])
        merged = merged.sort_by([("shard", "ascending"), ("row", "ascending")])
        parquet.write_table(merged, output.directory / COPIES, compression="zstd")
        output.statistics.counts["documents that are copies"] = len(merged)
        output.statistics.counts["groups of copies"] = len(set(merged.column("kept_document").to_pylist()))

    def _members(self, shard: int, low: int, high: int) -> "_Members":
        """What a shard has in clusters `low` to `high`."""
        starts = open_array(self.place.file(_ASSIGN, shard, "starts.npy"))[low : high + 1]
        rows = np.asarray(open_array(self.place.file(_ASSIGN, shard, "rows.npy"))[starts[0] : starts[-1]])
        order = self._preference(shard, rows)
        cluster = np.repeat(np.arange(low, high, dtype=np.int32), np.diff(starts))
        ids = parquet.read_table(self.place.shards[shard], columns=["id"]).column("id").combine_chunks()
        ids = ids.take(pa.array(rows))
        vectors = self.place.embeddings(shard)[rows]
        return _Members(np.full(len(rows), shard, np.int32), rows, cluster, order, ids, vectors)

    def _preference(self, shard: int, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Smaller is better; equal ones go by place."""
        if self.place.stage.keep == "best":
            return -np.asarray(open_array(self.place.file(_EMBED, shard, "scores.npy"))[rows])
        if self.place.stage.keep == "farthest":
            return np.asarray(open_array(self.place.file(_ASSIGN, shard, "similarity.npy"))[rows])
        return np.zeros(len(rows), np.float32)


@dataclass(frozen=True)
class _Members:
    """Documents of some clusters: columns of equal length."""

    shards: NDArray[np.int32]
    rows: NDArray[np.int64]
    clusters: NDArray[np.int32]
    preference: NDArray[np.float32]
    ids: pa.Array
    vectors: NDArray[np.float16]


def _in_order(parts: Sequence[_Members]) -> _Members:
    """Of all shards, by cluster and within it by preference, then place."""
    shards, rows, clusters, preference = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("shards", "rows", "clusters", "preference")
    )
    order = np.lexsort((rows, shards, preference, clusters))
    ids = pa.concat_arrays([part.ids for part in parts]).take(pa.array(order))
    vectors = np.concatenate([part.vectors for part in parts])[order]
    return _Members(shards[order], rows[order], clusters[order], preference[order], ids, vectors)


def _copies(members: _Members, first: int, stop: int, threshold: float) -> pa.Table:
    """What is removed of one cluster, that is of members `first` to `stop`."""
    vectors = normalise(members.vectors[first:stop].astype(np.float32))
    leader, similarity = find_leaders(vectors, threshold)
    copies = np.flatnonzero(leader != np.arange(len(leader)))
    which = first + copies
    columns = {
        "shard": members.shards[which],
        "row": members.rows[which],
        "document": members.ids.take(pa.array(which)),
        "kept_document": members.ids.take(pa.array(first + leader[copies])),
        "similarity": similarity[copies],
        "cluster": members.clusters[which],
    }
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class _Filter(_Step):
    """Task: a shard without its copies."""

    name: str = _FILTER

    def run(self, task: int, output: TaskOutput) -> None:
        parts = [
            parquet.read_table(self.place.file(_PAIRS, block, COPIES), columns=["row"], filters=[("shard", "==", task)])
            for block in range(self.num_tasks)
        ]
        removed = np.zeros(parquet.read_metadata(self.place.shards[task]).num_rows, np.bool_)
        removed[pa.concat_tables(parts).column("row").to_numpy()] = True

        def left(batch: DocumentBatch, first: int) -> DocumentBatch:
            here = removed[first : first + len(batch)]
            if self.place.stage.check_only:
                output.statistics.counts["copies, left in"] += int(here.sum())
                return batch
            output.statistics.add_removed("says the same as another", batch, np.flatnonzero(here))
            return batch.keep(~here)

        pass_on(self.place.shards[task], output, left)


def check_embedder(options: EmbedderOptions) -> None:
    """Raises `DataError` for what cannot work on this machine."""
    options.check_settings()
    if options.is_directory:
        make_embedder(options)


@functools.lru_cache(maxsize=1)
def make_embedder(options: EmbedderOptions) -> Embedder:
    """The embedder that the options name, kept for the next task of this process.

    Raises:
        DataError: its model cannot be loaded.
    """
    if options.is_url:
        from glmforge_corpus.deduplicate.embedding_endpoint import EndpointEmbedder

        return EndpointEmbedder(options)
    if options.is_directory:
        with needed_for(f"embedder {options.embedder}"):
            from glmforge_corpus.deduplicate.sentence_model import SentenceModel
        return SentenceModel(options)
    return LexicalEmbedder()
