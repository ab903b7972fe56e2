"""Anchors and the passages around them against brute force."""

import random
from pathlib import Path

import numpy as np
import pytest

from glmforge_corpus.deduplicate.passages import (
    NEIGHBOURS,
    anchors,
    equal_passages,
    find_matches,
    merged,
    snap,
    write_anchors,
)


def buffers(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)])


def anchors_of(text: bytes, gram: int, window: int) -> list[tuple[int, int]]:
    hashes, _, places = anchors(*buffers([text]), gram, window)
    return list(zip(hashes.tolist(), places.tolist(), strict=True))


@pytest.mark.parametrize("alphabet", [b"ab", b"abcdefghijklmnop"])
def test_equal_passages_have_an_anchor_in_common(alphabet: bytes) -> None:
    generator = random.Random(0)
    gram, window = 8, 9
    for _ in range(200):
        passage = bytes(generator.choices(alphabet, k=gram + window - 1))
        found = []
        for _ in range(2):
            before, after = (bytes(generator.choices(alphabet, k=generator.randrange(60))) for _ in range(2))
            inside = range(len(before), len(before) + window)
            chosen = anchors_of(before + passage + after, gram, window)
            found.append({value for value, place in chosen if place in inside})
        assert found[0] & found[1]


def test_anchors_are_the_least_hashes_of_their_windows() -> None:
    generator = random.Random(1)
    gram, window = 5, 12
    text = bytes(generator.choices(range(256), k=500))
    every = {place: value for value, place in anchors_of(text, gram, 1)}
    assert sorted(every) == list(range(len(text) - gram + 1))
    chosen = anchors_of(text, gram, window)
    expected = {min(range(i, i + window), key=lambda k: every[k]) for i in range(len(every) - window + 1)}
    assert {place for _, place in chosen} == expected
    assert all(every[place] == value for value, place in chosen)


def test_monotony_does_not_make_an_anchor_of_every_place() -> None:
    assert len(anchors_of(b"a" * 10_000, 50, 51)) <= 10_000 // 51 + 1


def test_short_texts_have_no_anchors_and_rows_are_told_apart() -> None:
    hashes, rows, places = anchors(*buffers([b"x" * 15, b"x" * 16, b"", b"x" * 16]), 8, 9)
    assert rows.tolist() == [1, 3]
    assert hashes[0] == hashes[1]
    assert places[0] == places[1]


@pytest.mark.parametrize("num_parts", [1, 3])
def test_matches_are_the_first_and_the_nearest_of_an_anchors_hash(tmp_path: Path, num_parts: int) -> None:
    generator = np.random.default_rng(4)
    groups: dict[int, list[tuple[int, int]]] = {}
    for shard, size in enumerate((40, 0, 25)):
        hashes = generator.integers(0, 5, size).astype(np.uint64) * np.uint64((1 << 64) // 5)
        rows, starts = np.sort(generator.integers(0, 9, size)), np.arange(size)
        (tmp_path / str(shard)).mkdir()
        write_anchors(tmp_path / str(shard), hashes, rows, starts)
        for value, row, start in zip(hashes.tolist(), rows.tolist(), starts.tolist(), strict=True):
            groups.setdefault(value, []).append((shard << 32 | row, start))
    expected = {
        (later, earlier)
        for group in groups.values()
        for k, later in enumerate(group)
        for earlier in {*group[:k][:1], *group[:k][-NEIGHBOURS:]}
    }
    found: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for part in range(num_parts):
        columns = (column.tolist() for column in find_matches([tmp_path / str(k) for k in range(3)], part, num_parts))
        found += [((b, j), (a, i)) for b, j, a, i in zip(*columns, strict=True)]
    assert sorted(found) == sorted(expected)


def brute_force(later: bytes, earlier: bytes, same: bool, shortest: int) -> set[int]:
    """Places of `later` inside a stretch of at least `shortest` bytes that stands in `earlier`, or before in itself."""
    covered: set[int] = set()
    for j in range(len(later)):
        for i in range(j if same else len(earlier)):
            length = 0
            while j + length < len(later) and i + length < len(earlier) and later[j + length] == earlier[i + length]:
                length += 1
            if length >= shortest:
                covered |= set(range(j, j + length))
    return covered


@pytest.mark.parametrize("same", [False, True])
def test_passages_are_all_that_brute_force_finds(same: bool) -> None:
    generator = random.Random(3)
    for _ in range(30):
        pieces = [bytes(generator.choices(b"abc", k=9)) for _ in range(4)]
        later = b"".join(generator.choices([*pieces, b"x", b"yz"], k=8))
        earlier = later if same else b"".join(generator.choices([*pieces, b"q"], k=8))
        places = range(len(later))
        pairs = [(j, i) for j in places for i in range(j if same else len(earlier)) if later[j] == earlier[i]]
        pairs.sort(key=lambda pair: (pair[0] - pair[1], pair[0]))
        starts = np.array([j for j, _ in pairs], np.int64), np.array([i for _, i in pairs], np.int64)
        index = np.zeros(len(pairs), np.int64)
        found = merged(equal_passages(buffers([later]), index, buffers([earlier]), index, starts, 7))
        covered = {place for _, start, stop in found.tolist() for place in range(start, stop)}
        assert covered == brute_force(later, earlier, same, 7)


def test_a_text_of_one_letter_is_measured_in_linear_time() -> None:
    size = 200_000
    text = buffers([b"a" * size])
    places = np.arange(1, size, 10)
    starts = places, np.zeros_like(places)  # all at different distances: 2 * 10^9 comparisons if none were spared
    index = np.zeros_like(places)
    found = merged(equal_passages(text, index, text, index, starts, 100))
    assert found.tolist() == [[0, 1, size]]


def test_merging_joins_what_overlaps_or_touches() -> None:
    passages = np.array([[1, 5, 9], [0, 0, 4], [0, 2, 6], [0, 6, 7], [0, 9, 10]])
    assert merged(passages).tolist() == [[0, 0, 7], [0, 9, 10], [1, 5, 9]]


@pytest.mark.parametrize(
    ("text", "passage", "expected"),
    [
        ("some words here", (2, 12), (5, 11)),
        ("some words here", (2, 10), (5, 10)),
        ("some words here", (0, 15), (0, 15)),
        ("日本語日本語", (1, 14), (3, 12)),
        ("é" * 100, (1, 199), (2, 198)),
        ("one\ntwo\nthree", (2, 9), (4, 8)),
    ],
    ids=["into words", "at the end of a word", "whole", "characters", "one long word", "lines"],
)
def test_borders_move_to_words_and_characters(text: str, passage: tuple[int, int], expected: tuple[int, int]) -> None:
    data, borders = buffers([text.encode()])
    found = np.array([[0, *passage]])
    snap(data, borders, found)
    assert (found[0, 1], found[0, 2]) == expected
