"""Gopher's rules: against datatrove with the same words, against plain counts, and at their limits."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from glmforge_corpus.filter.rules.gopher import GopherQuality, GopherRepetition
from glmforge_corpus.filter.rules.language_limits import language_limits
from glmforge_corpus.filter.rules.repetition import count_repetition
from glmforge_corpus.words.split import split_words
from helpers.rule_texts import assert_same_decisions, batch_of, datatrove_tokeniser, failed_rules, random_text

PROSE = "the house of stone that stands beside the river and the old mill with two small wheels keeps its secrets "
TEXTS = [random_text(seed) for seed in range(600)]


def words_and(count: int, extra: str) -> str:
    return " ".join(f"the{i} of" if i % 9 else "the of" for i in range(count // 2)) + extra


def test_quality_decides_as_datatrove_does() -> None:
    filters = pytest.importorskip("datatrove.pipeline.filters")
    extremes = [
        "a " * 60,
        "the of " + "incomprehensibilities " * 60,
        words_and(100_200, ""),
        "the of\n" * 60 + "x ... " * 20,
    ]
    extremes += ["\n".join([PROSE + "..."] * 5), PROSE * 3 + "…" * 20, "stone houses stand near small rivers " * 10]
    reasons = {
        "gopher_short_doc": "too few words", "gopher_long_doc": "too many words",
        "gopher_below_avg_threshold": "words too short", "gopher_above_avg_threshold": "words too long",
        "gopher_too_many_hashes": "too many hash signs", "gopher_too_many_ellipsis": "too many ellipses",
        "gopher_too_many_bullets": "too many bullets", "gopher_too_many_end_ellipsis": "too many lines end in ellipses",
        "gopher_below_alpha_threshold": "too few alphabetic words", "gopher_enough_stop_words": "too few stop words",
    }  # fmt: skip
    theirs = filters.GopherQualityFilter(language=datatrove_tokeniser())
    assert_same_decisions(GopherQuality(), theirs, reasons, TEXTS + extremes)


def test_repetition_decides_as_datatrove_does() -> None:
    filters = pytest.importorskip("datatrove.pipeline.filters")
    reasons = {"dup_para_frac": "duplicate paragraphs", "dup_para_char_frac": "characters in duplicate paragraphs"}
    reasons |= {"dup_line_frac": "duplicate lines", "dup_line_char_frac": "characters in duplicate lines"}
    reasons |= {f"top_{n}_gram": f"one {n}-gram too often" for n in (2, 3, 4)}
    reasons |= {f"duplicated_{n}_n_grams": f"repeated {n}-grams" for n in range(5, 11)}
    long = "the whole paragraph is here again and it is rather long"
    short = [f"{i} short" for i in range(10)]
    texts = [*TEXTS, "\n\n".join([long, *short, long]), "\n".join([long, *short, long])]
    passages = [[f"p{i:03}" for i in range(n)] for n in range(5, 11)]
    ends = ["longword01", "longword02", "longword03", "longword04"]
    passages += [[*ends[:2], *"abcdef"[: n - 4], *ends[2:]] for n in range(5, 11)]
    texts += [" ".join([*p, *(f"w{i:03}" for i in range(k)), *p]) for p in passages for k in range(5, 90, 3)]
    assert_same_decisions(
        GopherRepetition(), filters.GopherRepetitionFilter(language=datatrove_tokeniser()), reasons, texts
    )


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "d"]), max_size=60))
@settings(max_examples=200, deadline=None)
def test_n_grams_are_counted_as_a_dictionary_counts(words: list[str]) -> None:
    data = np.frombuffer(" ".join(words).encode(), np.uint8)
    cut = split_words(data, np.array([0, len(data)]))
    lengths = np.arange(9)
    out = count_repetition(
        cut.borders, cut.hashes, cut.characters, np.array([0]), (lengths > 0) & (lengths < 4), lengths >= 4
    )[0]
    for n in range(1, 9):
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        if n < 4:
            top = Counter(grams).most_common(1)
            assert out[n] == (top[0][1] * len(" ".join(top[0][0])) if top else 0)
            continue
        seen, total, place = set(), 0, 0
        while place < len(grams):
            is_old = grams[place] in seen
            total += is_old * len("".join(grams[place]))
            seen.add(grams[place])
            place += n if is_old else 1
        assert out[n] == total


def test_n_grams_of_any_length_can_be_asked_for() -> None:
    block = GopherRepetition(top_n_grams={1: 0.3}, repeated_n_grams={12: 0.2})
    failed = failed_rules(block.process(batch_of(["so so so so and on", PROSE, PROSE * 2])))
    assert "one 1-gram too often" in failed[0]
    assert not failed[1]
    assert failed[2] >= {"repeated 12-grams"}


@pytest.mark.parametrize(
    ("options", "text", "rule"),
    [
        ({"min_words": 3, "min_stop_words": 0}, "one two", "too few words"),
        ({"min_words": 0, "max_words": 2, "min_stop_words": 0}, "one two three", "too many words"),
        ({"min_words": 0, "min_stop_words": 1}, "The house stands", "too few stop words"),
        ({"min_words": 0, "min_stop_words": 1, "stop_words": {"en": ["why"]}}, "the have with", "too few stop words"),
        ({"min_words": 0, "min_stop_words": 0}, "1234 5678 9012 3456 word", "too few alphabetic words"),
    ],
)
def test_options_set_the_limits(options: dict[str, object], text: str, rule: str) -> None:
    assert failed_rules(GopherQuality(**options).process(batch_of([text]))) == [{rule}]


def test_limits_of_zero_are_none() -> None:
    off = ["min_words", "max_words", "min_mean_word_length", "max_mean_word_length", "max_symbols", "max_bullet_lines"]
    off += ["max_ellipsis_lines", "min_alphabetic_words", "min_stop_words"]
    block = GopherQuality(**dict.fromkeys(off, 0))
    for language in ("en", "de", "xx"):
        assert failed_rules(block.process(batch_of(["...", "- #", " ", "x" * 500], language))) == [set()] * 4


CHINESE = (
    "我们在河边的旧磨坊里住了很多年，那里的水很清，也很安静。" * 4
    + "房子是石头的，有两个小轮子和一个院子，每年夏天都有很多人从城里来看它。"
)
GERMAN = "Das Haus aus Stein steht seit langem an dem Fluss und die alte Mühle mit den zwei Rädern hat kein Dach. " * 3


@pytest.mark.parametrize(("language", "text"), [("zh", CHINESE), ("de", GERMAN)])
def test_other_languages_have_their_own_limits(language: str, text: str) -> None:
    assert failed_rules(GopherQuality().process(batch_of([text], language))) == [set()]
    assert "too few stop words" in failed_rules(GopherQuality().process(batch_of([text], "en")))[0]
    assert (
        "too few stop words" in failed_rules(GopherQuality(per_language=False).process(batch_of([text], language)))[0]
    )
    assert failed_rules(GopherQuality(default_language=language).process(batch_of([text]))) == [set()]


def test_a_language_without_limits_has_no_rules_of_words() -> None:
    text = "zu kurz ist es ja so an zu am im es du er " * 5
    assert failed_rules(GopherQuality().process(batch_of([text], "xx"))) == [set()]


def test_programs_pass() -> None:
    texts = ["x = 1\n" * 50, "..."]
    for block in (GopherQuality(), GopherRepetition()):
        assert failed_rules(block.process(batch_of(texts, "code"))) == [set(), set()]
        assert all(failed_rules(block.process(batch_of(texts[:1]))))


def test_limits_of_languages_are_complete() -> None:
    for language, limits in language_limits().items():
        assert 5 <= len(limits.stop_words) <= 64, language
        assert list(limits.top_n_grams) == [2, 3, 4]
        assert list(limits.repeated_n_grams) == [5, 6, 7, 8, 9, 10]
        assert 0 <= limits.min_mean_word_length < limits.max_mean_word_length
        assert 0.5 <= limits.min_alphabetic_words < 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GopherQuality(stop_words={"en": []}), "'en' has 0 words"),
        (lambda: GopherRepetition(top_n_grams={5: 0.1}), "5 is also a length of repeated_n_grams"),
        (lambda: GopherRepetition(repeated_n_grams={0: 0.1}), "n-grams of 0 words"),
        (lambda: GopherQuality(min_word=3), "min_word"),
    ],
)
def test_impossible_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make()  # type: ignore[operator]


def test_an_empty_batch_is_no_problem() -> None:
    for block in (GopherQuality(), GopherRepetition()):
        assert all(len(failed) == 0 for failed in block.process(batch_of([])).failed.values())
