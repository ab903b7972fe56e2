import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from glmforge.data.tokens.characters import SPLIT_PATTERN
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.word_counts import WordCounter

ORACLE = pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated")
APART = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
PARTS = ["a ", "b", " the", "12", "<think>", "</think>", "/noth", "ink", "<|user|", ">"]
TEXTS = st.lists(st.lists(st.sampled_from(PARTS)).map("".join))


def count(texts: list[str], **options) -> WordCounter:
    counter = WordCounter(SPECIAL_TOKENS, **options)
    counter.add_texts(texts)
    return counter


def plainly(texts: list[str]) -> Counter[bytes]:
    parts = (part for text in texts for part in APART.split(text))
    return Counter(piece.encode() for part in parts for piece, _ in ORACLE.pre_tokenize_str(part))


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_counts_are_those_of_the_library_around_special_tokens(texts):
    assert count(texts).finish().words() == plainly(texts)


def test_many_words_make_the_tables_grow():
    texts = [f" w{i % 70_000}" for i in range(120_000)]
    counted = count(texts).finish()
    assert counted.words() == plainly(texts)


def test_a_word_longer_than_the_tables():
    text = "x" * 3_000_000
    assert count([text, "y"]).finish().words() == {text.encode(): 1, b"y": 1}


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_counts_do_not_depend_on_the_cut_even_when_words_are_dropped(cut):
    letters = "abcdefghijklmno"
    rare = ["".join(letters[i // 15**k % 15] for k in range(4)) for i in range(3000)]
    texts = [f" common {word} common" for word in rare]
    counter = WordCounter(max_bytes=5000)
    for start in range(0, len(texts), cut):
        counter.add_texts(texts[start : start + cut])
    words = counter.finish()
    whole = count(texts, max_bytes=5000).finish()
    assert words.words() == whole.words()
    assert words.num_dropped == whole.num_dropped > 0
    assert words.words()[b" common"] == 6000  # what is frequent is never dropped
    assert words.offsets[-1] <= 5000 + 20


def test_texts_in_the_middle_of_a_buffer():
    counter = WordCounter()
    counter.add(np.frombuffer(b"skip me and not me", np.uint8), np.array([5, 7, 11]))
    assert counter.finish().words() == {b"me": 1, b" and": 1}


def test_only_spellings_that_are_looked_for_are_set_apart():
    with pytest.raises(AssertionError, match="not looked for"):
        WordCounter(["<a>", "{b}"])
