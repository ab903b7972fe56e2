"""Near vectors among many: spherical k-means, and who is a copy of whom within a cluster.

All vectors have length 1 (or 0), so that a dot product is a cosine. Matrix products go through numpy in blocks of
fixed size: their results do not depend on how many workers there are.
"""

import math

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.deduplicate.embedder import normalise

ROWS_PER_BLOCK = 4096
DOCUMENTS_PER_CLUSTER = 2048
MAX_ITERATIONS = 20

Vectors = NDArray[np.float32]


def default_num_clusters(num_documents: int) -> int:
    """Clusters of about 2,048 documents, or the square root of their number if that is more.

    The work of comparing grows with documents x cluster size, that of assigning with documents x clusters: beyond 4
    million documents the two are in balance at the square root. Fewer, larger clusters miss fewer pairs.
    """
    return max(1, round(num_documents / max(DOCUMENTS_PER_CLUSTER, math.sqrt(num_documents))))


def spherical_k_means(vectors: Vectors, num_clusters: int, seed: int) -> Vectors:
    """Centroids `[num_clusters, d]` of length 1 for vectors `[n, d]`.

    Lloyd's iterations from randomly drawn vectors until nothing changes, at most `MAX_ITERATIONS`. A cluster that runs
    empty is given the vector that is farthest from its own centroid.
    """
    generator = np.random.default_rng(seed)
    num_clusters = min(num_clusters, len(vectors))
    centroids = vectors[np.sort(generator.choice(len(vectors), num_clusters, replace=False))]
    before = np.full(len(vectors), -1, np.int32)
    for _ in range(MAX_ITERATIONS):
        nearest, similarity = assign(vectors, centroids)
        if np.array_equal(nearest, before):
            break
        sums, counts = _sum_by(vectors, nearest, num_clusters)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = vectors[np.argsort(similarity, kind="stable")[: len(empty)]]
        centroids = normalise(sums.astype(np.float32))
        before = nearest
    return centroids


def assign(vectors: Vectors, centroids: Vectors) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(nearest centroid, cosine to it) of each vector; the first of equally near ones."""
    nearest = np.empty(len(vectors), np.int32)
    similarity = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        products = vectors[block] @ centroids.T
        nearest[block] = products.argmax(axis=1)
        similarity[block] = np.take_along_axis(products, nearest[block, None], axis=1)[:, 0]
    return nearest, similarity


def find_leaders(vectors: Vectors, threshold: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Who stands for whom, vectors `[n, d]` being in order of preference.

    A vector is a copy of the nearest earlier *kept* one if their cosine is at least `threshold`, and kept otherwise.
    So every removed document is near one that is kept, no two kept ones are near each other, and no chain of small
    steps removes what is far from all that is left.

    Returns:
        (`[n]` the row that stands for each row, itself where it is kept; `[n]` the cosine, 1 where it is kept).
    """
    leader = np.arange(len(vectors), dtype=np.int64)
    similarity = np.ones(len(vectors), np.float32)
    kept = np.empty(0, np.int64)
    for start in range(0, len(vectors), ROWS_PER_BLOCK):
        block = vectors[start : start + ROWS_PER_BLOCK]
        near, cosine = _nearest_kept(block, vectors, kept)
        _lead_within(block @ block.T, near, cosine, np.float32(threshold), start)
        rows = np.arange(start, start + len(block))
        is_copy = cosine >= np.float32(threshold)
        leader[rows[is_copy]], similarity[rows[is_copy]] = near[is_copy], cosine[is_copy]
        kept = np.concatenate([kept, rows[~is_copy]])
    return leader, similarity


def _nearest_kept(
    block: Vectors, vectors: Vectors, kept: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    near = np.full(len(block), -1, np.int64)
    cosine = np.full(len(block), -2, np.float32)
    for start in range(0, len(kept), ROWS_PER_BLOCK):
        rows = kept[start : start + ROWS_PER_BLOCK]
        found, value = assign(block, vectors[rows])
        better = value > cosine
        near[better], cosine[better] = rows[found[better]], value[better]
    return near, cosine


@compiled
def _lead_within(products, near, cosine, threshold, start):  # type: ignore[no-untyped-def]
    """Go on with the rows of one block, in order: near earlier kept rows of the block itself."""
    for row in range(len(products)):
        for earlier in range(row):
            if cosine[earlier] < threshold and products[row, earlier] > cosine[row]:
                cosine[row], near[row] = products[row, earlier], start + earlier


@compiled
def _sum_by(vectors, nearest, num_clusters):  # type: ignore[no-untyped-def]
    """(sums in double precision `[num_clusters, d]`, how many each)."""
    sums = np.zeros((num_clusters, vectors.shape[1]), np.float64)
    counts = np.zeros(num_clusters, np.int64)
    for row in range(len(vectors)):
        counts[nearest[row]] += 1
        for column in range(vectors.shape[1]):
            sums[nearest[row], column] += vectors[row, column]
    return sums, counts
