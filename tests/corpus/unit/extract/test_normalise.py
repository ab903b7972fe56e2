"""Normalisation against a plain reference, and against Python's own `unicodedata`."""

import re
import unicodedata

import ftfy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.extract.normalise import COMPOSITION, Normalise, character_table, survey

REMOVED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")


def reference(text, max_blank_lines=2):
    """What the block promises, without its mojibake repair."""
    text = re.sub("\r\n|[\r\x85\u2028\u2029]", "\n", text)
    text = unicodedata.normalize("NFC", REMOVED.sub("", text))
    text = re.sub(r"[ \t]+(?=\n|$(?![\n]))", "", text)
    text = re.sub(rf"\n{{{max_blank_lines + 2},}}", "\n" * (max_blank_lines + 1), text)
    return text.strip("\n") if text.strip(" \t\n") else ""


def normalise(*texts, **options):
    batch = DocumentBatch.from_columns([str(i) for i in range(len(texts))], list(texts), "s")
    return Normalise(**options).process(batch)


CHARACTERS = [*"ab \t\n\r\x00\x0c\x7f\x85é日🎉Ą", "\u0301", "\u0323", "\u00ad", "\u200b", "\u200d", "\ufeff", "\u2028"]
CHARACTERS += ["\u1100", "\u1161", "\u11a8", "\u0958", "\u212b", "\u037e"]
TEXTS = st.text(st.sampled_from(CHARACTERS), max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS | st.text(max_size=12), min_size=1, max_size=5), st.integers(0, 3))
def test_is_the_reference(texts, max_blank_lines):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    outcome = normalise(*texts, mojibake=False, max_blank_lines=max_blank_lines)
    expected = [reference(text, max_blank_lines) for text in texts]
    assert outcome.batch.texts == expected
    assert outcome.failed["empty"].tolist() == [not text for text in expected]


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS | st.text(max_size=20), min_size=1, max_size=4))
def test_second_time_changes_nothing(texts):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    once = normalise(*texts).batch.texts
    assert normalise(*once).batch.texts == once


def test_every_character_that_may_compose_is_seen():
    table, everything = character_table(), [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    batch = DocumentBatch.from_columns([str(i) for i in range(len(everything))], everything, "s")
    needs = survey(batch.text_bytes, batch.text_offsets, table, 2)
    missed = [
        c
        for c, need in zip(everything, needs, strict=True)
        if not need & COMPOSITION and unicodedata.normalize("NFC", c) != c
    ]
    assert missed == []
    # A second character of any composition: found by composing what every character decomposes into.
    place = {character: index for index, character in enumerate(everything)}
    seconds = {
        unicodedata.normalize("NFD", c)[-1]
        for c in everything
        if len(unicodedata.normalize("NFD", c)) > 1 and unicodedata.normalize("NFC", c) == c
    }
    assert all(needs[place[second]] & COMPOSITION for second in seconds)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schÃ¶n", "schön"),
        ("a\r\nb\rc\n\rd", "a\nb\nc\n\nd"),
        ("itâ€™s", "it’s"),
        ("æ—¥æœ¬", "日本"),
        ("cafe\u0301 \r\n\r\n\r\n\r\nb  ", "café\n\n\nb"),
        ("  indented\n\tcode", "  indented\n\tcode"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("Uni\u00adver\u200bsity", "University"),
    ],
)
def test_examples(text, expected):
    assert normalise(text).batch.texts == [expected]


@pytest.mark.parametrize("text", ["Universität“ und «été»", "ÃO PAULO", "naïve Æther – “quoted” ½", "Ångström", "é»"])
def test_good_text_is_left_alone(text):
    assert normalise(text).batch.texts == [text]
    assert ftfy.fix_encoding(text) == text


def test_clean_batch_is_not_copied():
    batch = DocumentBatch.from_columns(["a", "b"], ["plain text\n\nof two", "schöne Wörter"], "s")
    outcome = Normalise().process(batch)
    assert outcome.batch is batch
    assert not outcome.counts


def test_slice_of_a_batch_and_counts():
    batch = DocumentBatch.from_columns(list("abcd"), ["x ", "schÃ¶n", "c", " \n "], "s").slice(1, 4)
    outcome = Normalise().process(batch)
    assert outcome.batch.texts == ["schön", "c", ""]
    assert outcome.failed["empty"].tolist() == [False, False, True]
    assert outcome.counts == {"normalise: changed": 2, "normalise: mojibake repaired": 1}


def test_batches_do_not_matter():
    texts = ["a\r\n", "schÃ¶n\n\n\n\n\n", "e\u0301", "clean", "\ufeffx"]
    assert normalise(*texts).batch.texts == [normalise(text).batch.texts[0] for text in texts]
