"""The splitter against the same rule written over Python's characters, and its counts against `str`'s methods."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge_corpus.words import word_kernels as columns
from glmforge_corpus.words.characters import CLASS, PUNCTUATION_CHARACTERS, SYMBOL, character_table
from glmforge_corpus.words.split import sentence_spans, split_words, words_of


def script(character: str) -> str:
    """What kind of character the rule takes it for."""
    name, category = unicodedata.name(character, ""), unicodedata.category(character)
    if character.isspace():
        return "space"
    if character in "'.’·":
        return "joiner"
    if character == ",":
        return "comma"
    if category[0] == "M" or category == "Cf":
        return "extender"
    if name.startswith("CJK UNIFIED"):
        return "han"
    if name.startswith("HIRAGANA"):
        return "hiragana"
    if name.startswith("KATAKANA"):
        return "katakana"
    if name.startswith("THAI CHARACTER") and category == "Lo":
        return "leading" if "SARA E" in name or "SARA AE" in name or "MAI" in name or "SARA O" in name else "thai"
    if category[0] == "L":
        return "letter"
    return "digit" if category[0] == "N" else "connector" if category == "Pc" else "symbol"


RUN = {"letter", "digit", "connector", "extender"}
UNSPACED = {"han": 2, "hiragana": 2, "katakana": 10**9, "thai": 4, "leading": 4}


def reference(text: str) -> list[str]:
    """The rule of `split.py`, a character at a time."""
    kinds = [script(character) for character in text] + ["end", "end"]
    words, at = [], 0

    def extenders(position: int) -> int:
        while kinds[position] == "extender":
            position += 1
        return position

    while at < len(text):
        start, kind = at, kinds[at]
        if kind == "space":
            at += 1
            continue
        if kind in RUN:
            while True:
                joins = kinds[at] == "joiner" and kinds[at + 1] in {"letter", "digit", "connector"}
                joins |= kinds[at] == "comma" and kinds[at - 1] == "digit" and kinds[at + 1] == "digit"
                if kinds[at] not in RUN and not joins:
                    break
                at += 1
        elif kind in UNSPACED:
            letters, group = 0, kind
            while letters < UNSPACED[kind] and (kinds[at] == group or group == "leading"):
                if group == "leading":  # what follows a leading vowel is of its piece if it is Thai
                    group = "thai"
                at = extenders(at + 1)
                letters += 1
        else:
            while at < len(text) and text[at] == text[start]:
                at += 1
            at = extenders(at)
        words.append(text[start:at])
    return words


SPACES = [" ", "  ", "\n", "\r\n", "\r", "\x0b", "\x85", "\u2028", "\u3000", "\xa0", "\t"]
CHARACTERS = "aZé9٣_-#…•.,'’·!?/{\"。、我们的ひらカターสเวั้\u0301\u200d한😀\x00\x7f"
STRINGS = ["...", "--", "word", "don't", "3.14", "1,000", "averylongword", "x" * 17]
PIECES = st.sampled_from([*CHARACTERS, *STRINGS, *SPACES])
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_words_are_those_of_the_rule(text: str) -> None:
    assert words_of(text) == reference(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,1 1,a 1,1 ,1 1, 9,٣", ["a", ",", "1", "1", ",", "a", "1,1", ",", "1", "1", ",", "9,٣"]),
        ("it's 'it' e.g. a.1 1.a a..b é.x", ["it's", "'", "it", "'", "e.g", ".", "a.1", "1.a", "a", "..", "b", "é.x"]),
        ("a_b __ well-known and/or", ["a_b", "__", "well", "-", "known", "and", "/", "or"]),
        ("我们的，家 ひらが カタカナ語", ["我们", "的", "，", "家", "ひら", "が", "カタカナ", "語"]),
        ("ภาษาไทย เเก", ["ภาษา", "ไทย", "เ", "เก"]),
    ],
)
def test_examples_of_the_rule(text: str, words: list[str]) -> None:
    assert words_of(text) == reference(text) == words


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_words_hold_every_character_that_is_no_space(text: str) -> None:
    text = text.replace("\u0f0b", "").replace("\u0f0c", "")  # Tibetan's separators belong to no word
    assert "".join(words_of(text)) == "".join(text.split())


@given(TEXTS, TEXTS)
@settings(max_examples=300, deadline=None)
def test_counts_are_those_of_python(before: str, text: str) -> None:
    data = (before + text).encode()
    start = len(before.encode())
    words = split_words(np.frombuffer(data, np.uint8), np.array([0, start, len(data)]))
    counts, found, lines = words.counts[1].tolist(), words_of(text), text.splitlines()
    real = [word for word in found if any(character not in PUNCTUATION_CHARACTERS for character in word)]
    assert counts[columns.WORDS] == len(found) == words.borders[2] - words.borders[1]
    assert counts[columns.REAL_WORDS] == len(real)
    assert counts[columns.REAL_CHARACTERS] == sum(map(len, real))
    assert counts[columns.ALPHABETIC_WORDS] == sum(any(map(str.isalpha, word)) for word in found)
    assert counts[columns.HASHES] == text.count("#")
    assert counts[columns.ELLIPSES] == text.count("...") + text.count("…")
    assert counts[columns.LINES] == len(lines)
    assert counts[columns.BULLET_LINES] == sum(line.lstrip().startswith(("-", "•")) for line in lines)
    assert counts[columns.ELLIPSIS_LINES] == sum(line.rstrip().endswith(("...", "…")) for line in lines)
    assert counts[columns.CHARACTERS] == len(text)
    assert counts[columns.NEWLINES] == text.count("\n")


@given(TEXTS, TEXTS)
@settings(max_examples=100, deadline=None)
def test_a_word_has_one_hash_wherever_it_stands(first: str, second: str) -> None:
    texts = [text.encode() for text in (first, second)]
    offsets = np.cumsum([0, *map(len, texts)])
    words = split_words(np.frombuffer(b"".join(texts), np.uint8), offsets)
    names = words_of(first) + words_of(second)
    assert (
        len(set(zip(names, words.hashes.tolist(), strict=True))) == len(set(names)) == len(set(words.hashes.tolist()))
    )
    assert words.characters.tolist() == [len(name) for name in names]


def test_more_words_than_expected_are_no_problem() -> None:
    text = "a " * 50_000
    assert words_of(text) == text.split()


@pytest.mark.parametrize("damaged", [b"\xe4\xb8", b"a\xff b", b"\xf4\xbf\xbf\xbf", b"\xc3"])
def test_bytes_that_are_no_utf8_do_no_harm(damaged: bytes) -> None:
    data = np.frombuffer(damaged, np.uint8)
    words = split_words(data, np.array([0, len(data)]))
    assert 1 <= len(words.hashes) <= len(data)


def test_every_code_point_has_a_class() -> None:
    table = character_table()
    assert table[ord("€")] & CLASS == SYMBOL
    assert table.shape == (0x110000,)
    assert not table.flags.writeable


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three!", ["One.", " Two?", " Three!"]),
        ('He said: "Go!" She went.', ['He said: "Go!"', " She went."]),
        ("Version 3.14 is e.g. out", ["Version 3.14 is e.g.", " out"]),
        ("你好。我是谁？「去！」他说。", ["你好。", "我是谁？", "「去！」", "他说。"]),
        ("Wait... what?! Yes.", ["Wait...", " what?!", " Yes."]),
        ("no end", ["no end"]),
        ("  ", []),
        ("", []),
        ("यह है। वह है।", ["यह है।", " वह है।"]),
        ("End.  \t \n \t   \t\t ", ["End."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert [text[a:b] for a, b in sentence_spans(text)] == sentences


@given(TEXTS)
@settings(max_examples=100, deadline=None)
def test_sentences_follow_each_other(text: str) -> None:
    spans = list(sentence_spans(text))
    assert [a for a, _ in spans] == [0, *(b for _, b in spans)][: len(spans)]
    assert not text[spans[-1][1] if spans else 0 :].strip()
