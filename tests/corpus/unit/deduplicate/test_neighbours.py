"""Clusters, and who stands for whom, against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge_corpus.deduplicate import neighbours
from glmforge_corpus.deduplicate.embedder import normalise
from glmforge_corpus.deduplicate.neighbours import (
    assign,
    default_num_clusters,
    find_leaders,
    spherical_k_means,
)


def directions(n: int, d: int, seed: int) -> np.ndarray:
    return normalise(np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32))


def plain_leaders(vectors: np.ndarray, threshold: float) -> list[int]:
    """Each in turn goes to the nearest one kept so far, or is kept."""
    leaders: list[int] = []
    for row in range(len(vectors)):
        kept = [other for other in range(row) if leaders[other] == other]
        cosines = [float(vectors[row] @ vectors[other]) for other in kept]
        near = max(range(len(kept)), key=cosines.__getitem__, default=None)
        leaders.append(row if near is None or cosines[near] < threshold else kept[near])
    return leaders


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 10_000), st.floats(0.2, 0.9), st.sampled_from([3, 7, 4096]))
def test_leaders_are_those_of_a_plain_loop_whatever_the_block(n: int, seed: int, threshold: float, rows: int) -> None:
    vectors = directions(n, 3, seed)  # in three dimensions, many are near each other
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "ROWS_PER_BLOCK", rows)
        leader, similarity = find_leaders(vectors, threshold)
    assert leader.tolist() == plain_leaders(vectors, threshold)
    copies = leader != np.arange(n)
    assert (similarity[copies] >= np.float32(threshold)).all()
    # Block products and single ones may differ in the last bit of a number up to 1.
    assert np.allclose(similarity[copies], (vectors * vectors[leader]).sum(axis=1)[copies], atol=1e-6)
    assert (leader[leader] == leader).all()


def test_a_chain_of_small_steps_does_not_remove_what_is_far_from_all_that_is_left() -> None:
    angles = np.deg2rad(np.arange(0, 90, 10))
    chain = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    leader, _ = find_leaders(chain, float(np.cos(np.deg2rad(15))))
    assert leader.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8]


def test_zero_vectors_are_nobodys_copies() -> None:
    leader, _ = find_leaders(np.zeros((3, 4), np.float32), 0.5)
    assert leader.tolist() == [0, 1, 2]


def test_planted_clusters_are_found_and_the_same_seed_finds_the_same() -> None:
    centres = np.eye(6, dtype=np.float32)
    which = np.repeat(np.arange(6), 50)
    vectors = normalise(centres[which] + 0.05 * directions(300, 6, 1))
    # Six seeds: k-means may settle with two centroids in one cluster; it must not do so each time.
    purities = []
    for seed in range(6):
        centroids = spherical_k_means(vectors, 6, seed)
        nearest, similarity = assign(vectors, centroids)
        assert np.array_equal(centroids, spherical_k_means(vectors, 6, seed))
        assert np.allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)
        assert np.allclose(similarity, (vectors @ centroids.T).max(axis=1), atol=1e-6)
        purities.append(sum(np.bincount(nearest[which == c]).max() for c in range(6)) / 300)
    assert max(purities) == 1


def test_no_cluster_runs_empty_where_vectors_differ() -> None:
    vectors = np.concatenate([np.tile(directions(1, 8, 0), (50, 1)), directions(10, 8, 1)])
    centroids = spherical_k_means(vectors, 8, seed=0)
    assert len(set(assign(vectors, centroids)[0].tolist())) >= 7  # equal centroids share their vectors


@pytest.mark.parametrize(("n", "k"), [(0, 1), (10, 1), (2048, 1), (20_480, 10), (4_194_304, 2048), (10**9, 31_623)])
def test_clusters_grow_with_the_corpus(n: int, k: int) -> None:
    assert default_num_clusters(n) == k


def test_k_means_of_few_or_no_vectors() -> None:
    assert spherical_k_means(directions(3, 4, 0), 10, 0).shape == (3, 4)
    assert spherical_k_means(np.zeros((0, 4), np.float32), 10, 0).shape == (0, 4)
