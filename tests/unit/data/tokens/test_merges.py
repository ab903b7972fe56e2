"""Merges against a plain trainer that recounts all pairs before every merge."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.data.tokens import merges
from glmforge.data.tokens.merges import learn_merges
from glmforge.data.tokens.word_counts import Words
from glmforge.errors import DataError

BYTES = np.arange(256, dtype=np.int32)


def words_of(counts: dict[bytes, int]) -> Words:
    offsets = np.cumsum([0, *map(len, counts)], dtype=np.int64)
    return Words(np.frombuffer(b"".join(counts), np.uint8).copy(), offsets, np.array(list(counts.values()), np.int64))


def learn(
    counts: dict[bytes, int], num_tokens: int, min_frequency: int = 2
) -> tuple[list[tuple[int, int]], list[bytes]]:
    learnt = learn_merges(words_of(counts), num_tokens, BYTES, min_frequency)
    return list(map(tuple, learnt.pairs.tolist())), learnt.tokens


def plainly(
    counts: dict[bytes, int], num_tokens: int, min_frequency: int = 2
) -> tuple[list[tuple[int, int]], list[bytes]]:
    words = [(list(word), count) for word, count in counts.items()]
    tokens, pairs = [bytes([byte]) for byte in range(256)], []
    while len(tokens) < num_tokens:
        frequencies = Counter()
        for word, count in words:
            for pair in pairwise(word):
                frequencies[pair] += count
        if not frequencies:
            break
        pair = min(frequencies, key=lambda pair: (-frequencies[pair], pair))
        if frequencies[pair] < min_frequency:
            break
        spelling = tokens[pair[0]] + tokens[pair[1]]
        token = tokens.index(spelling) if spelling in tokens else len(tokens)
        if token == len(tokens):
            tokens.append(spelling)
        if pair not in pairs:
            pairs.append(pair)
        words = [(join(word, pair, token), count) for word, count in words]
    return pairs, tokens


def join(word: list[int], pair: tuple[int, int], token: int) -> list[int]:
    joined, place = [], 0
    while place < len(word):
        if tuple(word[place : place + 2]) == pair:
            joined.append(token)
            place += 2
        else:
            joined.append(word[place])
            place += 1
    return joined


COUNTS = st.dictionaries(
    st.binary(min_size=1, max_size=14).map(lambda data: bytes(97 + byte % 3 for byte in data)),
    st.integers(1, 6),
    min_size=1,
    max_size=25,
)


@settings(max_examples=400, deadline=None)
@given(COUNTS, st.integers(257, 320), st.integers(1, 4))
def test_merges_are_the_plain_trainers(counts, num_tokens, min_frequency):
    assert learn(counts, num_tokens, min_frequency) == plainly(counts, num_tokens, min_frequency)


@pytest.mark.parametrize("seed", range(30))
def test_words_of_two_letters(seed):
    """Runs and overlaps everywhere."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(2, 24, 40)
    counts = {bytes(draw.integers(97, 99, size).astype(np.uint8)): int(draw.integers(1, 4)) for size in sizes}
    assert learn(counts, 420) == plainly(counts, 420)


def test_small_arrays_grow(monkeypatch):
    draw = np.random.default_rng(1)
    words = [bytes(draw.integers(97, 110, draw.integers(2, 12)).astype(np.uint8)) for _ in range(500)]
    counts = {word: 2 for word in words}
    expected = learn(counts, 700)
    begin = merges._Learner._begin

    def begin_small(learner):
        learner._table = np.full((512, 4), -1, np.int64)
        learner._heap = np.empty((256, 2), np.int64)
        learner._pool = learner._pool[: len(learner._rows)].copy()
        begin(learner)

    monkeypatch.setattr(merges._Learner, "_begin", begin_small)
    assert learn(counts, 700) == expected == plainly(counts, 700)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 9, 1000, 1001])
def test_runs_are_joined_from_their_start(length):
    counts = {b"a" * length: 3, b"ba" + b"a" * length + b"b": 1}
    assert learn(counts, 300) == plainly(counts, 300)


def test_counts_beyond_32_bits():
    counts = {b"ab": 3 << 40, b"ac": 2 << 40, b"cb": (3 << 40) + 1}
    assert learn(counts, 259)[0] == [(99, 98), (97, 98), (97, 99)]


def test_ties_are_decided_by_the_ids_given():
    words = words_of({b"ab": 5, b"cd": 5})
    ids = BYTES[::-1].copy()
    assert learn_merges(words, 257, ids).pairs.tolist() == [[255 - 99, 255 - 100]]


def test_the_order_of_the_words_does_not_matter():
    draw = np.random.default_rng(0)
    words = [bytes(draw.integers(97, 105, draw.integers(2, 9)).astype(np.uint8)) for _ in range(3000)]
    counts = {word: int(draw.integers(1, 50)) for word in words}
    shuffled = dict(sorted(counts.items(), key=lambda item: hash(item[0])))
    assert learn(counts, 2000) == learn(shuffled, 2000)


def test_more_bytes_of_words_than_places_can_tell_are_refused():
    words = Words(np.empty(0, np.uint8), np.array([0, 5, (1 << 31) + 2]), np.array([2, 1]))
    with pytest.raises(DataError, match=r"2,147,483,650 bytes .* one has 2,147,483,645 bytes"):
        learn_merges(words, 300, BYTES)


def test_no_words_at_all():
    assert learn({}, 300) == ([], [bytes([byte]) for byte in range(256)])
