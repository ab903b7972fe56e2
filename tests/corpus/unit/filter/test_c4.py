"""C4's rules: against datatrove with the same sentences, in other languages, and line by line."""

import pytest

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.filter.rules.c4 import C4
from helpers.rule_texts import assert_same_decisions, batch_of, datatrove_tokeniser, failed_rules, random_text

TEXTS = [random_text(seed) for seed in range(800)]
GOOD = "This is a line of enough words."
FIVE = [f"Line number {i} has enough words." for i in range(5)]


def kept(lines: list[str], language: str | None = None, **options: object) -> str:
    """What is left of a text that has five good lines more."""
    outcome = C4(**options).process(batch_of(["\n".join([*FIVE, *lines])], language))  # type: ignore[arg-type]
    assert failed_rules(outcome) == [set()]
    return outcome.batch.texts[0].removeprefix("\n".join(FIVE)).removeprefix("\n")


def test_it_decides_and_writes_as_datatrove_does() -> None:
    filters = pytest.importorskip("datatrove.pipeline.filters")
    reasons = {
        "too_few_sentences": "too few sentences",
        "lorem_ipsum": "lorem ipsum",
        "curly_bracket": "curly bracket",
    }
    assert_same_decisions(C4(), filters.C4QualityFilter(language=datatrove_tokeniser()), reasons, TEXTS)


@pytest.mark.parametrize("field", ["terminal_punctuation", "remove_citations", "curly_bracket", "javascript", "policy"])
def test_rules_can_be_turned_off_as_in_datatrove(field: str) -> None:
    filters = pytest.importorskip("datatrove.pipeline.filters")
    theirs = {
        "terminal_punctuation": "filter_no_terminal_punct",
        "curly_bracket": "filter_curly_bracket",
        "javascript": "filter_javascript",
        "policy": "filter_policy",
        "remove_citations": "remove_citations",
    }[field]
    reasons = {"too_few_sentences": "too few sentences", "lorem_ipsum": "lorem ipsum"}
    if field != "curly_bracket":
        reasons["curly_bracket"] = "curly bracket"
    options = {field: False}
    their_filter = filters.C4QualityFilter(language=datatrove_tokeniser(), **{theirs: False})
    assert_same_decisions(C4(**options), their_filter, reasons, TEXTS[:300])


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("  " + GOOD + " \t", GOOD),
        ("No full stop at the end", ""),
        ("It trails off at last...", ""),
        ("Two words.", ""),
        ("A fact with its proof.[12][citation needed]", "A fact with its proof."),
        ("A fact [3] with [edit] its [0] proof.", "A fact  with  its  proof."),
        ("An array[i] stays as it is.", "An array[i] stays as it is."),
        ("Please enable JavaScript in your browser.", ""),
        ("We USE Cookies to serve you.", ""),
        ("Read our terms of use here.", ""),
        ("We use cook ies to serve you.", "We use cook ies to serve you."),
        ("Short " + "x" * 1000 + " is fine.", "Short " + "x" * 1000 + " is fine."),
        ("Long " + "é" * 1001 + " is not.", ""),
        ("Ends in a bracket.]", ""),
        ("Er sagte „so ist das“", ""),
    ],
)
def test_lines_are_kept_or_not(line: str, left: str) -> None:
    assert kept([line]) == left


def test_lines_are_counted_by_what_removes_them() -> None:
    lines = [
        "no end", "Too short.", "Javascript is the word here.", "We have a privacy policy here.", "A word [1] or two.",
    ]  # fmt: skip
    counts = C4().process(batch_of(["\n".join(FIVE + lines + ["x" * 1001 + "."])])).counts
    assert counts == {
        "c4: lines without terminal punctuation": 1,
        "c4: lines of too few words": 1,
        "c4: lines with a word too long": 1,
        "c4: lines about javascript": 1,
        "c4: lines about policies": 1,
        "c4: citation marks cut out": 1,
    }


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("zh", "我们住在河边的旧房子里。"),
        ("zh", "他说：「我们都很喜欢这条河」"),
        ("ja", "私たちは川のそばに住んでいます。"),
        ("de", "Er sagte leise: „Das ist so“"),
        ("fr", "Il a dit : « C’est ainsi »"),
        ("hi", "हम नदी के पास रहते हैं।"),
        ("th", "เราอาศัยอยู่ในบ้านเก่าริมแม่น้ำ" * 8),
    ],
)
def test_lines_of_other_languages_end_in_their_own_way(language: str, line: str) -> None:
    text = "\n".join([line] * 5)
    outcome = C4().process(batch_of([text], language))
    assert failed_rules(outcome) == [set()]
    assert outcome.batch.texts == [text]
    assert failed_rules(C4().process(batch_of([text], "en"))) != [set()]
    assert failed_rules(C4(per_language=False).process(batch_of([text], language))) != [set()]


def test_japanese_lines_of_two_words_are_too_short_and_chinese_ones_if_wanted() -> None:
    assert kept(["四個字。"], "ja") == ""
    assert kept(["這是六個字。"], "ja") == "這是六個字。"
    outcome = C4(chinese_lines=True, min_sentences=0).process(batch_of(["四个字。\n这是六个字。"], "zh"))
    assert outcome.batch.texts == ["这是六个字。"]


def test_chinese_lines_stay_but_those_of_phrases() -> None:
    lines = ["床前明月光", "A. 三", "", "设A={1,2,3}，求子集的个数", "please enable javascript to see this page"]
    assert kept(lines, "zh") == "\n".join(lines[:-1])


def test_thai_needs_three_long_lines_instead_of_sentences() -> None:
    long = "เราอาศัยอยู่ในบ้านเก่าริมแม่น้ำ" * 8
    assert failed_rules(C4().process(batch_of(["\n".join([long, long])], "th"))) == [{"too few long lines"}]
    assert failed_rules(C4(min_sentences=0).process(batch_of([long], "th"))) == [set()]


def test_removed_documents_keep_their_text_and_programs_all() -> None:
    texts = ["if (x) { return }\n", "Nothing here ends", "\n".join(FIVE) + "\ngone"]
    batch = DocumentBatch.from_columns(["a", "b", "c"], texts, "t", languages=["code", "en", "en"])
    outcome = C4().process(batch)
    assert failed_rules(outcome) == [set(), {"too few sentences", "nothing left"}, set()]
    assert outcome.batch.texts == [*texts[:2], "\n".join(FIVE)]


def test_an_empty_batch_is_no_problem() -> None:
    assert len(C4().process(batch_of([])).batch) == 0
