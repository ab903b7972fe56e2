"""Hashed units and shingles against Python's own strings."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from glmforge_corpus.deduplicate.signatures import Shingling, shingle_hashes

TRICKY = "aZ09.,'-!\x00\t\n\x0b\x1c\x1f \x85\xa0\u2003\u3000\u200béÉßİıΣσς中文字あアไทय한\U0001f600𐐀\U00020000"
LONG_WORDS = ["seventeen-letters", "exactly8", "morethan8", "x" * 64, "É" * 9]


def buffers(texts: Sequence[str], before: bytes = b"") -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    offsets = len(before) + np.cumsum([0, *map(len, encoded)])
    data = np.frombuffer(before + b"".join(encoded), np.uint8)
    return data, offsets.astype(np.int64)


def hashes(texts: Sequence[str], before: bytes = b"", **options: Any) -> list[list[int]]:
    data, offsets = buffers(texts, before)
    found, borders = shingle_hashes(data, offsets, np.arange(len(texts)), Shingling(**options))
    return [found[borders[k] : borders[k + 1]].tolist() for k in range(len(texts))]


def words_of(text: str) -> list[str]:
    return text.lower().replace("ς", "σ").split()


def shingles_of(units: list[str], size: int) -> list[tuple[str, ...]]:
    size = min(size, len(units))
    return [tuple(units[i : i + size]) for i in range(len(units) - size + 1)] if units else []


def assert_same_pattern(found: list[int], expected: list[Any], known: dict[Any, int]) -> None:
    """Equal hashes exactly where the things hashed are equal, in all texts seen so far."""
    assert len(found) == len(expected)
    for value, thing in zip(found, expected, strict=True):
        assert known.setdefault(thing, value) == value
    assert len(set(known.values())) == len(known)


def random_text(generator: random.Random) -> str:
    return "".join(generator.choice([*TRICKY, "word", " ", *LONG_WORDS]) for _ in range(generator.randrange(120)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_word_shingles_are_those_of_pythons_split(size: int) -> None:
    generator, known = random.Random(size), {}
    for _ in range(400):
        text = random_text(generator)
        assert_same_pattern(hashes([text], unit="word", size=size)[0], shingles_of(words_of(text), size), known)


@pytest.mark.parametrize("size", [1, 4])
def test_character_shingles_are_those_of_the_normalised_text(size: int) -> None:
    generator, known = random.Random(size), {}
    for _ in range(400):
        text = random_text(generator)
        characters = list(" ".join(words_of(text)))
        found = hashes([text], unit="character", size=size)[0]
        assert_same_pattern(found, shingles_of(characters, size), known)


@settings(deadline=None)  # the first call compiles
@given(st.text(max_size=200))
@example("İstanbul ΟΔΟΣ")
@example("a\u2028b")
def test_any_text_has_the_words_that_python_finds(text: str) -> None:
    assert_same_pattern(hashes([text], unit="word", size=1)[0], words_of(text), {})


def test_every_character_is_lowered_and_split_as_python_does() -> None:
    points = [p for p in [*range(0x20000), 0x20000, 0x2FA1D, 0xE0001, 0x10FFFF] if not 0xD800 <= p < 0xE000]
    upper, lower = ([f"x{text}y" for text in texts] for texts in (map(chr, points), map(str.lower, map(chr, points))))
    found, expected = hashes(upper, unit="word", size=1), hashes(lower, unit="word", size=1)
    assert [chr(p) for p, a, b in zip(points, found, expected, strict=True) if a != b] == []
    assert [text for text, words in zip(upper, found, strict=True) if len(words) != len(words_of(text))] == []


def test_a_hash_depends_on_the_words_alone_not_on_where_they_stand() -> None:
    text = "The Quick brown fox, jumps-over the lazy dog " + " ".join(LONG_WORDS)
    expected = hashes([text + " "])[0]
    for shift in range(70):  # past the eight bytes of a load and the 64 of a block
        assert hashes([text], before=b"a b" * 30 + b"x" * shift)[0] == expected  # ends with the buffer
        assert hashes(["  " * shift + text + "\n" * shift, "more"])[0] == expected


def test_mixed_units_are_letters_where_a_script_has_no_spaces() -> None:
    for text, units in [
        ("Python是一种语言 really", ["python", "是", "一", "种", "语", "言", "really"]),
        ("ไท𠀀", ["ไ", "ท", "𠀀"]),
        ("བོད་སྐད།", ["བོད", "སྐད།"]),  # Tibetan: a word per syllable
        ("한국어 글", ["한국어", "글"]),  # Korean has spaces
    ]:
        assert [hashes([text], unit="mixed", size=1)[0]] == [[one for (one,) in hashes(units, unit="mixed", size=1)]]
    assert hashes(["plain words"], unit="mixed") == hashes(["plain words"], unit="word")


@pytest.mark.parametrize(
    "text",
    ["中文文本", "ひらがなカタカナ", "ｶﾀｶﾅ", "ภาษาไทย", "ພາສາລາວ", "ភាសាខ្មែរ", "မြန်မာစာ", "ꆈꌠꉙ", "ꦧꦱꦗꦮ"],
    ids=["Han", "kana", "kana of half width", "Thai", "Lao", "Khmer", "Burmese", "Yi", "Javanese"],
)
def test_by_default_every_letter_of_a_script_without_spaces_is_a_unit(text: str) -> None:
    assert len(hashes([text], size=1)[0]) == len(text)


def test_punctuation_separates_words_if_asked() -> None:
    assert hashes(["«Don't», she said…"], size=1, strip_punctuation=True) == hashes(["don t she said"], size=1)
    assert hashes(["«Don't», she said…"], size=1) != hashes(["don t she said"], size=1)


@pytest.mark.parametrize("unit", ["word", "mixed", "character"])
def test_texts_without_units_have_no_shingles(unit: str) -> None:
    assert hashes(["", " \n\t", "\u3000"], unit=unit) == [[], [], []]


def test_a_short_text_is_one_shingle() -> None:
    assert len(hashes(["three short words"])[0]) == 1
    assert hashes(["three short words"]) == hashes(["Three  SHORT words"])


def test_only_the_rows_wanted_are_hashed() -> None:
    data, offsets = buffers(["a b", "c d e", "f"])
    found, borders = shingle_hashes(data, offsets, np.array([2, 0]), Shingling(size=1))
    assert [found[borders[k] : borders[k + 1]].tolist() for k in range(2)] == hashes(["f", "a b"], size=1)


def test_bytes_that_are_no_utf8_do_no_harm() -> None:
    data = np.frombuffer(b"ok \xff\xe4\xb8 \xf0\x9f\x98", np.uint8)
    found, _ = shingle_hashes(data, np.array([0, len(data)]), np.arange(1), Shingling(size=1))
    assert len(found) == 3
