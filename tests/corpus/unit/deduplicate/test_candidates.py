"""Bands -> candidate pairs -> similarities -> clusters, each against a plain oracle."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from glmforge.errors import DataError
from glmforge_corpus.deduplicate import bands
from glmforge_corpus.deduplicate.bands import KEYS, ROW_BITS, candidates, write_keys
from glmforge_corpus.deduplicate.clusters import Clusters, join, removed
from glmforge_corpus.deduplicate.places import places, rows_of, shards_of
from glmforge_corpus.deduplicate.similarity import jaccard_similarities, signature_similarities


def write_shards(directory: Path, shards: list[np.ndarray]) -> list[Path]:
    paths = [directory / str(number) for number in range(len(shards))]
    for path, keys in zip(paths, shards, strict=True):
        path.mkdir()
        write_keys(path, keys.astype(np.uint64) << np.uint64(24), np.ones(len(keys), bool))
    return paths


def found_pairs(paths: list[Path], num_parts: int, num_old: int = 0) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for part in range(num_parts):
        earlier, later = candidates(paths, part, num_parts, num_old)
        pairs = list(zip(earlier.tolist(), later.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        assert pairs == sorted(pairs, key=lambda pair: (pair[1], pair[0]))
        found |= set(pairs)
    return found


@pytest.mark.parametrize("num_parts", [1, 3, 7])
@pytest.mark.parametrize("num_old", [0, 1])
def test_candidates_are_all_pairs_with_a_key_in_common(tmp_path: Path, num_parts: int, num_old: int) -> None:
    generator = np.random.default_rng(0)
    spread = (1 << 40) // 300  # over all of the key space, so that each part has some; small buckets only
    shards = [generator.integers(0, 300, (size, 3)) * spread for size in (40, 0, 30, 1)]
    owners: dict[int, set[int]] = {}
    for number, keys in enumerate(shards):
        for row, key in itertools.product(range(len(keys)), range(3)):
            owners.setdefault(int(keys[row, key]), set()).add(number << 32 | row)
    assert max(map(len, owners.values())) <= bands.SMALL_BUCKET
    expected = {pair for owner in owners.values() for pair in itertools.combinations(sorted(owner), 2)}
    expected = {pair for pair in expected if pair[1] >= num_old << 32}
    assert found_pairs(write_shards(tmp_path, shards), num_parts, num_old) == expected


def test_the_whole_key_space_is_covered(tmp_path: Path) -> None:
    last = (1 << 40) - 1
    paths = write_shards(tmp_path, [np.array([[0], [last]]), np.array([[last], [0]])])
    assert found_pairs(paths, 5) == {(0, (1 << 32) + 1), (1, 1 << 32)}


def test_a_bucket_of_everything_is_linear_and_stays_in_one_piece(tmp_path: Path) -> None:
    size = 5_000
    paths = write_shards(tmp_path, [np.zeros((size, 2)), np.zeros((size, 2))])
    earlier, later = candidates(paths, 0, 1, 0)
    assert len(earlier) <= 2 * size * (bands.NEIGHBOURS + 1)
    clusters = join(earlier, later)
    assert len(clusters.members) == 2 * size
    assert (clusters.cluster == 0).all()


def test_a_large_bucket_pairs_new_texts_with_old_ones(tmp_path: Path) -> None:
    earlier, later = candidates(write_shards(tmp_path, [np.zeros((50, 1)), np.zeros((2, 1))]), 0, 1, 1)
    assert set(shards_of(later)) == {1}
    assert set(zip(shards_of(earlier), rows_of(earlier), rows_of(later), strict=True)) >= {(0, 0, 0), (0, 49, 0)}


def test_texts_without_shingles_have_no_keys(tmp_path: Path) -> None:
    write_keys(tmp_path, np.zeros((3, 2), np.uint64), np.array([True, False, True]))
    assert found_pairs([tmp_path], 1) == {(0, 2)}


def test_too_many_rows_for_a_shard_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "ROW_BITS", 2)
    with pytest.raises(DataError, match="5 documents; at most 4 are supported"):
        write_keys(tmp_path, np.zeros((5, 1), np.uint64), np.ones(5, bool))


@pytest.mark.parametrize("alphabet", [4, 50, 10**6])
def test_jaccard_is_that_of_pythons_sets(alphabet: int) -> None:
    generator = np.random.default_rng(alphabet)

    def some_sets(count: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = generator.integers(0, 60, count)
        values = generator.integers(0, alphabet, lengths.sum()).astype(np.uint64) << np.uint64(40)  # one slot for all
        return values, np.cumsum([0, *lengths])

    a, b = some_sets(20), some_sets(15)
    pairs = np.array([(i, j) for j in range(15) for i in generator.permutation(20)])

    def members(sets: tuple[np.ndarray, np.ndarray], k: int) -> set[int]:
        return set(sets[0][sets[1][k] : sets[1][k + 1]].tolist())

    expected = []
    for i, j in pairs:
        one, other = members(a, i), members(b, j)
        expected.append(len(one & other) / len(one | other) if one | other else 0.0)
    assert jaccard_similarities(a, pairs[:, 0], b, pairs[:, 1]).tolist() == expected


def test_a_huge_set_among_small_ones_is_compared_rightly() -> None:
    huge = np.arange(300_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashes, borders = np.concatenate([huge[:10], huge, huge[:150_000]]), np.array([0, 10, 300_010, 450_010])
    rows = np.array([0, 0, 1]), np.array([1, 2, 2])
    found = jaccard_similarities((hashes, borders), rows[0], (hashes, borders), rows[1])
    assert found.tolist() == [10 / 300_000, 10 / 150_000, 0.5]


def test_signatures_are_compared_entry_by_entry() -> None:
    made = np.array([[1, 2, 3, 4], [1, 2, 0, 0], [9, 9, 9, 9]], np.uint32)
    assert signature_similarities(made, np.array([0, 0]), made, np.array([1, 2])).tolist() == [0.5, 0.0]


def test_clusters_are_the_connected_components() -> None:
    generator = np.random.default_rng(1)
    for num_edges in (0, 5, 40, 200):
        a, b = np.sort(generator.integers(0, 100, (num_edges, 2)).astype(np.uint64)).T
        a, b = a[a != b], b[a != b]
        groups: list[set[int]] = []
        for edge in zip(a.tolist(), b.tolist(), strict=True):
            touched = [group for group in groups if group & set(edge)]
            groups = [group for group in groups if group not in touched] + [set(edge).union(*touched)]
        clusters = join(a, b)
        members = clusters.members.tolist()
        assert sorted(members) == members == sorted(set().union(*groups)) if groups else members == []
        for group in groups:
            names = {int(clusters.cluster[members.index(member)]) for member in group}
            assert names == {members.index(min(group))}


@pytest.mark.parametrize(
    ("weights", "num_old", "stays"),
    [
        ([0, 0, 0], 0, [0]),
        ([1, 5, 3], 0, [1]),
        ([5, 1, 5], 0, [0]),
        ([np.nan, 1, np.nan], 0, [1]),
        ([np.nan] * 3, 0, [0]),
        ([1, 5, 9], 1, [0, 1]),
    ],
    ids=[
        "first",
        "heaviest",
        "first of equals",
        "a score beats none",
        "no scores",
        "the index stays, whatever it weighs",
    ],
)
def test_which_copy_stays(weights: list[float], num_old: int, stays: list[int]) -> None:
    members = np.concatenate([places(0, np.array([3, 7])), places(1, np.array([0]))])
    gone = removed(Clusters(members, np.zeros(3, np.int64)), np.array(weights), num_old)
    assert np.flatnonzero(~gone).tolist() == stays


@pytest.mark.parametrize(("num_documents", "high"), [(0, 2**64), (1, 2**64), (300, 2**64), (300, 3), (3000, 2**30)])
def test_keys_are_stored_in_order(num_documents, high, tmp_path):
    keys = np.random.default_rng(0).integers(0, high, (num_documents, 7), np.uint64) << np.uint64(
        24 if high < 2**40 else 0
    )
    write_keys(tmp_path, keys, np.ones(num_documents, bool))
    rows = np.arange(num_documents, dtype=np.uint64)[:, None]
    expected = np.sort(keys >> np.uint64(ROW_BITS) << np.uint64(ROW_BITS) | rows, axis=None)
    assert np.array_equal(np.load(tmp_path / KEYS), expected)
