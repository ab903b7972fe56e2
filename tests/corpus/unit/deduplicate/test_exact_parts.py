"""Fingerprints, paragraphs, repeats and cuts against plain oracles."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from glmforge_corpus.deduplicate.fingerprints import (
    Compare,
    Paragraph,
    find_repeats,
    fingerprints,
    paragraphs,
    repeats_of_shard,
    write_records,
)
from glmforge_corpus.deduplicate.removal import cut


def buffers(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])


def prints(texts: list[str], compare: Compare) -> list[tuple[int, int]]:
    data, offsets = buffers(texts)
    return [tuple(row) for row in fingerprints(data, offsets[:-1], offsets[1:], compare).tolist()]


@pytest.mark.parametrize("compare", ["words", "bytes"])
def test_fingerprints_are_equal_where_texts_are(compare: Compare) -> None:
    generator = random.Random(0)
    texts = ["".join(generator.choices("abAB é\x00\n", k=generator.randrange(12))) for _ in range(3000)]
    known: dict[object, tuple[int, int]] = {}
    for text, found in zip(texts, prints(texts, compare), strict=True):
        assert known.setdefault(tuple(text.lower().split()) if compare == "words" else text, found) == found
    for half in range(2):
        assert len({found[half] for found in known.values()}) == len(known)


def test_order_matters() -> None:
    assert len(set(prints(["a b c", "c b a", "b a c", "ab c", "a bc", "abc"], "words"))) == 6


@pytest.mark.parametrize("kind", ["line", "block"])
def test_paragraphs_are_those_of_a_regular_expression(kind: Paragraph) -> None:
    generator = random.Random(1)
    texts = [
        "".join(generator.choices(["x", "yy", " ", "\n", "\n\n", "\r"], k=generator.randrange(20))) for _ in range(500)
    ]
    data, offsets = buffers(texts)
    borders, starts, stops = paragraphs(data, offsets, kind)
    assert borders[-1] == len(starts)
    for row, text in enumerate(texts):
        mine = range(borders[row], borders[row + 1])
        found = [text[starts[k] - offsets[row] : stops[k] - offsets[row]] for k in mine]
        lines = text.split("\n")
        expected = [line for line in lines if line.strip()]
        if kind == "block":
            grouped = itertools.groupby(lines, key=lambda line: bool(line.strip()))
            expected = ["\n".join(group) for is_text, group in grouped if is_text]
        assert found == expected


@pytest.mark.parametrize("num_parts", [1, 4])
@pytest.mark.parametrize("collide", [False, True])
def test_repeats_are_all_but_the_first(tmp_path: Path, num_parts: int, collide: bool) -> None:
    generator = np.random.default_rng(2)
    seen: dict[tuple[int, int], int] = {}
    expected: list[list[tuple[int, int, int]]] = []
    directories = []
    for shard, size in enumerate((30, 0, 50)):
        rows, numbers = np.sort(generator.integers(0, 20, size)), np.arange(size)
        made = generator.integers(0, 15, (size, 2)).astype(np.uint64) * np.uint64(1 << 60)
        if collide:
            made[:, 0] = 5
        directories.append(tmp_path / str(shard))
        directories[-1].mkdir()
        write_records(directories[-1], "text", made, rows, numbers)
        expected.append([])
        for row, number, fingerprint in zip(rows.tolist(), numbers.tolist(), map(tuple, made.tolist()), strict=True):
            seen[fingerprint] = seen.get(fingerprint, 0) + 1
            if seen[fingerprint] > 1:
                expected[-1].append((row, number, seen[fingerprint]))
    parts = [tmp_path / f"part{part}" for part in range(num_parts)]
    for part, directory in enumerate(parts):
        directory.mkdir()
        find_repeats(directories, "text", part, num_parts).save(directory, "text")
    for shard in range(3):
        found = repeats_of_shard(parts, "text", shard)
        assert list(zip(*(column.tolist() for column in found), strict=True)) == sorted(expected[shard])


def test_cutting_leaves_the_rest() -> None:
    data, offsets = buffers(["keep this CUTaway and this", "untouched ", "all of it", "begin \n end"])
    spans = [(0, 10, 17), (2, 0, 9), (3, 0, 0), (3, 6, 11)]
    rows = np.array([row for row, _, _ in spans])
    borders = np.searchsorted(rows, np.arange(5))
    starts = offsets[rows] + [start for _, start, _ in spans]
    stops = offsets[rows] + [stop for _, _, stop in spans]
    found, found_offsets = cut(data, offsets, borders, starts, stops)
    texts = [bytes(found[a:b]).decode() for a, b in itertools.pairwise(found_offsets)]
    assert texts == ["keep this  and this", "untouched ", "", "begin"]
