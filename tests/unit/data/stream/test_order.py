import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.data.stream.order import permute, stream_key


@pytest.mark.parametrize("size", [*range(1, 20), 255, 256, 257, 1000, 4095, 4096, 4097, 65_537, 200_003])
def test_permute_is_a_bijection(size):
    image = permute(np.arange(size), size, 7)
    assert np.array_equal(np.sort(image), np.arange(size))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_permute_stays_in_range_and_apart(size, key, data):
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    image = permute(indices, size, np.uint64(key))
    assert len(set(image.tolist())) == len(indices)
    assert 0 <= image.min() <= image.max() < size


def test_one_call_serves_many_permutations():
    sizes = np.array([5, 1000, 10**9, 1, 300])
    keys = np.array([1, 2, 3, 4, 5], dtype=np.uint64)
    indices = np.array([4, 999, 123_456_789, 0, 17])
    one_by_one = [int(permute(*each)) for each in zip(indices, sizes, keys, strict=True)]
    assert permute(indices, sizes, keys).tolist() == one_by_one


def test_keys_give_unrelated_orders():
    """Two random orders agree in about one place (Poisson, mean 1): more than 10 has probability 1e-8."""
    orders = [permute(np.arange(10_000), 10_000, key) for key in range(8)]
    for first, second in itertools.combinations(orders, 2):
        assert np.sum(first == second) <= 10


def test_small_permutations_are_all_equally_likely():
    """Chi-squared over the 120 orders of five windows: 119 degrees of freedom, mean 119, deviation 15.4."""
    keys = np.arange(12_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    orders = permute(np.arange(5)[None, :], 5, keys[:, None])
    counts = np.unique(orders @ 5 ** np.arange(5), return_counts=True)[1]
    assert len(counts) == math.factorial(5)
    assert np.sum((counts - 100) ** 2 / 100) < 119 + 5 * 15.4


def test_positions_are_uniform():
    """Where index 0 goes over 10,000 keys, in 100 bins: 99 degrees of freedom, deviation 14.1."""
    image = permute(0, 1000, np.arange(10_000, dtype=np.uint64))
    counts = np.bincount(image // 10, minlength=100)
    assert np.sum((counts - 100) ** 2 / 100) < 99 + 5 * 14.1


def test_neighbours_are_scattered():
    """The correlation of an index with its image has deviation 1/sqrt(n) = 0.003."""
    n = 100_000
    image = permute(np.arange(n), n, 3)
    assert abs(np.corrcoef(np.arange(n), image)[0, 1]) < 0.015
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.015


def test_order_is_the_same_on_every_machine():
    """Pinned: a change would make old runs resume on other data."""
    assert permute(np.arange(6), 1000, stream_key(0, 1, "web", 2)).tolist() == [127, 956, 948, 104, 81, 602]


def test_keys_tell_their_parts_apart():
    parts = [(1, 2), (2, 1), (12,), (1, "2"), ("1", 2), ("1", "2"), (0, 1, 2), ("1 2",), ()]
    assert len({stream_key(*each) for each in parts}) == len(parts)


def test_index_outside_is_an_error():
    with pytest.raises(AssertionError):
        permute([5], 5, 0)
