"""Words of raw UTF-8 against a plain reading of strings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.data.passages.normalised_words import (
    IGNORED,
    SEPARATOR,
    SINGLE,
    fold_character,
    fold_table,
    split_words,
)


def read(texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    """(hashes, start bytes) per text, from the compiled loop."""
    encoded = [text.encode() for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(data) for data in encoded])]).astype(np.int64)
    hashes, letters, bounds, starts = split_words(np.frombuffer(b"".join(encoded), np.uint8), offsets, fold_table())
    assert len(hashes) == len(letters) == len(starts) == bounds[-1]
    rows = range(len(texts))
    return (
        [hashes[bounds[row] : bounds[row + 1]].tolist() for row in rows],
        [(starts[bounds[row] : bounds[row + 1]] - offsets[row]).tolist() for row in rows],
    )


def plain_words(text: str) -> list[tuple[str, int]]:
    """(word, start byte) by a loop over characters."""
    words: list[tuple[str, int]] = []
    current, start, at = "", 0, 0
    for character in text:
        code = ord(character)
        kind = (code | SINGLE if code <= 0x3FFFF else 0) if code >= 0x20000 else fold_character(character)
        if kind & SINGLE or kind == SEPARATOR:
            if current:
                words.append((current, start))
            current = ""
        if kind & SINGLE:
            words.append((chr(kind & ~SINGLE), at))
        elif kind not in (SEPARATOR, IGNORED):
            start = start if current else at
            current += chr(kind)
        at += len(character.encode())
    return [*words, (current, start)] if current else words


CHARACTERS = st.one_of(st.sampled_from("aAbBzé’' ,.\n1你猫あｱ𠀀🙂"), st.characters(exclude_categories=["Cs"]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(CHARACTERS, max_size=30), min_size=1, max_size=4))
def test_words_and_places_are_those_of_a_plain_loop(texts: list[str]) -> None:
    hashes, starts = read(texts)
    plain = [plain_words(text) for text in texts]
    assert starts == [[start for _, start in words] for words in plain]
    names = {name: hash_ for words, row in zip(plain, hashes, strict=True) for (name, _), hash_ in zip(words, row)}  # noqa: B905
    assert [[names[name] for name, _ in words] for words in plain] == hashes  # one hash per word ...
    assert len(set(names.values())) == len(names)  # ... and one word per hash


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("The CAT", "the cat"),
        ("don't", "dont"),
        ("don’t", "dont"),
        ("x^2+y", "x 2 y"),
        ("$x^{2} + y$", "x 2 y"),
        ("well-known\n\tfact", "well known fact"),
        ("Café naïve", "Cafe naive"),
        ("Cafe\u0301", "café"),
        ("ＡＢＣ　１２", "abc 12"),
        ("𝐱𝟐", "x2"),
        ("soft\u00adware", "software"),
        ("“quoted”", "quoted"),
        ("ПРИВЕТ", "привет"),
        ("你好世界", "你 好, 世 界!"),
        ("ｱ", "ア"),
    ],
)
def test_case_accents_width_and_punctuation_do_not_matter(text: str, same: str) -> None:
    (first, second), _ = read([text, same])
    assert first == second
    assert first


@pytest.mark.parametrize("pair", [("cat", "cats"), ("a b", "ab"), ("x2", "x3"), ("猫", "犬"), ("ß", "s")])
def test_different_words_are_different(pair: tuple[str, str]) -> None:
    (first, second), _ = read(list(pair))
    assert first != second


def test_bytes_that_end_in_the_middle_of_a_character_are_read_to_their_end_and_no_farther() -> None:
    data = np.frombuffer("ab 你x".encode(), np.uint8)
    hashes, _, _, _ = split_words(data[:5], np.array([0, 5]), fold_table())
    assert len(hashes) == 1
