"""Toxicity: borders of words in every kind of script, severities, the classifier."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.filter.linear.classifier import Features, LinearClassifier
from glmforge_corpus.filter.toxicity import Severities, Toxicity
from glmforge_corpus.filter.word_lists import WordLists, load_word_lists


def batch_of(texts: list[str], languages: list[str | None] | None = None) -> DocumentBatch:
    return DocumentBatch.from_columns([f"d{n}" for n in range(len(texts))], texts, "test", languages=languages)


def hits(terms: list[str], text: str, allowed: tuple[str, ...] = ()) -> list[str]:
    lists, batch = WordLists({"en": terms}, allowed), batch_of(["before ", text, " behind"])
    found = lists.find(batch.text_bytes, batch.text_offsets, np.full(3, lists.languages["en"], np.uint64))
    assert set(found.rows) <= {1}
    return [text.encode()[a:b].decode() for a, b in zip(found.starts, found.stops, strict=True)]


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        (["cunt", "ass"], "Scunthorpe, class, assassin, pass_ass, ass1", []),
        (["ass"], "ass Ass, ASS! (ass) -ass-\nass", ["ass", "Ass", "ASS", "ass", "ass", "ass"]),
        (["ass"], "éass assé assß ДassД", []),
        (["ass"], "漢ass字", ["ass"]),
        (["хуй"], "ХУЙ хуйня Хуй, нахуй", ["ХУЙ", "Хуй"]),
        (["über"], "Über ÜBER über übermut", ["Über", "ÜBER", "über"]),
        (["エロ"], "ピエロ エロ エロい エロス", ["エロ"]),
        (["씨발"], "씨발놈 아씨발 씨발", ["씨발", "씨발"]),
        (["口交"], "口交 出口交通", ["口交", "口交"]),
        (["淫", "x"], "淫 書淫 x xx", ["x"]),
        (["ass", "ass hole", "hole"], "ass hole ass", ["ass hole", "ass"]),
        (["a b", "b c"], "a b c", ["a b"]),
        (["s.o.b", "a$$"], "s.o.b sxoxb a$$ a$$x", ["s.o.b", "a$$", "a$$"]),
        (["13."], "13. 113. 13.5 x13.", ["13.", "13."]),
        (["ไทย"], "คนไทยดี", ["ไทย"]),
    ],
)
def test_a_term_counts_where_it_stands_for_itself(terms: list[str], text: str, expected: list[str]) -> None:
    assert hits(terms, text) == expected


def test_allowed_phrases() -> None:
    assert hits(["口交"], "口交 出口交通", ("出口交通",)) == ["口交"]
    assert hits(["cock"], "cock Cock robin cock", ("cock robin",)) == ["cock", "cock"]


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.sampled_from(["ass", "Cum", "hole", " ", "-", "_", "s", "é", "1", "漢", "\n", "."]), max_size=25))
def test_hits_are_those_of_a_regular_expression(parts: list[str]) -> None:
    text = "".join(parts)
    terms = ["ass", "cum", "ass-hole"]
    expected = [m[0] for m in re.finditer(r"(?i)(?<![^\W漢])(?:ass-hole|ass|cum)(?![^\W漢])", text)]
    assert hits(terms, text) == expected


def write_lists(tmp_path, **lists: str):
    for language, terms in lists.items():
        (tmp_path / language).write_text(terms, encoding="utf-8")
    (tmp_path / "LICENSE").write_text("free as in word\n")
    return tmp_path


def test_a_document_is_searched_with_the_list_of_its_language(tmp_path) -> None:
    lists = write_lists(tmp_path, en="foo\nbar\n", de="mist\nfoo\n")
    texts, languages = ["foo mist bar", "foo mist bar", "foo mist bar", "foo mist bar"], ["en", "de", None, "fr"]
    outcome = Toxicity(lists=lists, min_hits=1).process(batch_of(texts, languages))
    assert outcome.batch.score("toxic_words").tolist() == pytest.approx([2000 / 3, 2000 / 3, 2000 / 3, 0])
    everywhere = Toxicity(lists=lists, all_lists=True).process(batch_of(texts, languages))
    assert everywhere.batch.score("toxic_words").tolist() == [1000] * 4
    fallback = Toxicity(lists=lists, fallback_language="none").process(batch_of(texts, languages))
    assert fallback.batch.score("toxic_words").tolist() == pytest.approx([2000 / 3, 2000 / 3, 0, 0])


def test_severities_and_removal(tmp_path) -> None:
    lists = write_lists(tmp_path, en="foo\n")
    texts = [f"{'foo ' * count}{'word ' * (1000 - count)}" for count in (0, 1, 2, 5, 30)]
    outcome = Toxicity(lists=lists).process(batch_of(texts))
    assert outcome.batch.score("toxic_words").tolist() == [0, 1, 2, 5, 30]
    assert outcome.failed == {}
    assert outcome.counts == {
        "toxicity: word hits": 38,
        "toxicity: at least mild": 3,
        "toxicity: at least moderate": 2,
        "toxicity: at least severe": 1,
    }
    removed = Toxicity(lists=lists, remove="moderate").process(batch_of(texts)).failed
    assert {rule: mask.tolist() for rule, mask in removed.items()} == {
        "toxicity: moderate": [False, False, False, True, True]
    }
    strict = Toxicity(lists=lists, remove="mild", min_hits=1, severities=Severities(mild=0.5)).process(batch_of(texts))
    assert strict.failed["toxicity: mild"].tolist() == [False, True, True, True, True]


def test_the_classifier_scores_and_removes(tmp_path) -> None:
    weights = np.ones(1024, np.float32)
    LinearClassifier(Features(bits=10, max_ngram=1), weights, -2.0).save(tmp_path / "toxicity.npz")
    block = Toxicity(model=tmp_path / "toxicity.npz", threshold=0.5)
    outcome = block.process(batch_of(["one", "one two three four five six seven"]))
    expected = [1 / (1 + np.exp(2 - 1)), 1 / (1 + np.exp(2 - np.sqrt(7)))]
    assert outcome.batch.score("toxicity").tolist() == pytest.approx(expected)
    assert outcome.failed["toxicity: classifier"].tolist() == [False, True]


def test_documents_are_judged_each_for_itself(tmp_path) -> None:
    lists = write_lists(tmp_path, en="foo\n")
    batch = batch_of(["xfoo", "foo", "foo", "o foo", "fo", "o"])
    whole = Toxicity(lists=lists).process(batch).batch.score("toxic_words")
    assert (whole > 0).tolist() == [False, True, True, True, False, False]
    part = Toxicity(lists=lists).process(batch.slice(2, 5)).batch.score("toxic_words")
    assert np.array_equal(part, whole[2:5])
    assert len(Toxicity(lists=lists).process(batch_of([])).batch) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs 'lists'"),
        ({"lists": "x", "threshold": 0.5}, "set 'model'"),
        ({"model": "x", "remove": "mild"}, "applies to word lists"),
    ],
)
def test_options_that_do_nothing_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Toxicity(**options)


def test_severities_must_rise() -> None:
    with pytest.raises(ValidationError, match="mild <= moderate"):
        Severities(mild=9, moderate=2)


def test_missing_and_broken_lists_are_named(tmp_path) -> None:
    with pytest.raises(DataError, match="no word lists"):
        load_word_lists(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no word lists"):
        load_word_lists(tmp_path)
    (tmp_path / "en").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"en: not readable as a word list"):
        load_word_lists(tmp_path)
    with pytest.raises(DataError, match="no terms"):
        WordLists({"en": ["", "  "]})
