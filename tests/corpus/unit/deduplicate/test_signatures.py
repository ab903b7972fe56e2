"""Signatures and bands against their definitions."""

import numpy as np
import pytest

from glmforge_corpus.deduplicate.signatures import (
    Bands,
    Shingling,
    band_keys,
    best_bands,
    permutations,
    shingle_hashes,
    signatures,
)

SHINGLING = Shingling(size=1)


def buffers(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])


@pytest.mark.parametrize("count", [1, 16, 119])
def test_an_entry_is_the_least_permuted_hash(count: int) -> None:
    texts = ["a", "b c d e f g h i", "j k l m n o p q r", "", " ".join(map(str, range(1000)))]
    data, offsets = buffers(texts)
    found, counts = signatures(data, offsets, SHINGLING, count)
    hashes, borders = shingle_hashes(data, offsets, np.arange(len(texts)), SHINGLING)
    factors, masks = (array.astype(object) for array in permutations(count))
    assert counts.tolist() == np.diff(borders).tolist()
    for row, text in enumerate(texts):
        lower = [int(value) & 0xFFFFFFFF for value in hashes[borders[row] : borders[row + 1]]]
        if text:
            expected = [min((x ^ masks[k]) * factors[k] % 2**32 for x in lower) for k in range(count)]
            assert found[row].tolist() == expected


def test_a_longer_signature_begins_with_the_shorter() -> None:
    data, offsets = buffers(["some words here"])
    assert (signatures(data, offsets, SHINGLING, 200)[0][:, :50] == signatures(data, offsets, SHINGLING, 50)[0]).all()


@pytest.mark.parametrize("jaccard", [0.2, 0.5, 0.8, 0.95])
def test_the_share_of_equal_entries_estimates_jaccard(jaccard: float) -> None:
    size, num_pairs, num_entries = 400, 50, 128
    common = round(2 * size * jaccard / (1 + jaccard))
    texts = []
    for pair in range(num_pairs):
        shared = [f"s{pair}_{k}" for k in range(common)]
        texts += [" ".join([*shared, *(f"{side}{pair}_{k}" for k in range(size - common))]) for side in "ab"]
    found, _ = signatures(*buffers(texts), SHINGLING, num_entries)
    exact = common / (2 * size - common)
    estimate = (found[::2] == found[1::2]).mean()
    # Independent entries have a standard deviation of sqrt(J (1 - J) / n) over n = 6,400; four of them.
    assert abs(estimate - exact) < 4 * np.sqrt(exact * (1 - exact) / (num_pairs * num_entries))


def test_bands_have_equal_keys_where_all_their_rows_are_equal() -> None:
    made = np.arange(24, dtype=np.uint32).reshape(2, 12)
    made[1, 3:6] = made[0, 3:6]
    made[1, 6:8] = made[0, 6:8]
    keys = np.empty((2, 4), np.uint64)
    band_keys(made, 3, keys)
    assert (keys[0] == keys[1]).tolist() == [False, True, False, False]


def test_equal_rows_in_different_bands_have_different_keys() -> None:
    keys = np.empty((1, 4), np.uint64)
    band_keys(np.full((1, 12), 7, np.uint32), 3, keys)
    assert len(set(keys[0].tolist())) == 4


def test_the_probability_of_a_candidate_is_what_a_simulation_gives() -> None:
    bands, jaccard, trials = Bands(10, 4), 0.6, 20_000
    equal = np.random.default_rng(0).random((trials, bands.number, bands.rows)) < jaccard
    simulated = equal.all(2).any(1).mean()
    assert abs(bands.probability(jaccard) - simulated) < 4 * np.sqrt(0.25 / trials)  # four standard deviations
    assert (bands.probability(0.0), bands.probability(1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.85, 0.95])
def test_bands_chosen_miss_little_at_the_threshold_and_above(threshold: float) -> None:
    bands = best_bands(threshold, 128, 0.98)
    assert bands.num_permutations <= 128
    # What the weight asks for in words: a miss at the threshold itself is rare, a little above it rarer still.
    assert bands.probability(threshold) > 0.95
    assert bands.probability(threshold + 0.05 * (1 - threshold) / 0.2) > 0.99


def test_a_dearer_miss_never_makes_the_bands_miss_more() -> None:
    found = [best_bands(0.8, 128, weight).probability(0.8) for weight in (0.1, 0.5, 0.9, 0.98)]
    assert found == sorted(found)
    assert best_bands(0.8, 128, 0.98) == Bands(17, 7)
