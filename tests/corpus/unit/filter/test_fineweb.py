"""FineWeb's rules: against datatrove with the same words, per language, and what blocks of a chain share."""

import numpy as np
import pytest

from glmforge_corpus.filter.rules import repetition, shared_counts
from glmforge_corpus.filter.rules.fineweb import FineWeb
from glmforge_corpus.filter.rules.gopher import GopherQuality, GopherRepetition
from helpers.rule_texts import assert_same_decisions, batch_of, datatrove_tokeniser, failed_rules, random_text

TEXTS = [random_text(seed) for seed in range(600)]
SENTENCE = "A sentence that is long enough not to be short, and that ends."


def test_it_decides_as_datatrove_does() -> None:
    filters = pytest.importorskip("datatrove.pipeline.filters")
    reasons = {
        "empty": "empty", "line_punct_ratio": "too few lines end sentences", "short_line_ratio": "too many short lines",
        "char_dup_ratio": "characters in duplicate lines", "list_ratio": "too many line feeds",
    }  # fmt: skip
    texts = [
        *TEXTS,
        " \n \n",
        SENTENCE + "\n" * 40,
        "x" * 30 + ".",
        "x" * 29 + ".\n" * 2,
        "\n".join(["ü" * 30] * 2 + ["."]),
    ]
    theirs = filters.FineWebQualityFilter(language=datatrove_tokeniser())
    assert_same_decisions(FineWeb(), theirs, reasons, texts)


def test_other_languages_are_judged_by_other_limits() -> None:
    lines = [f"第{i}行。" for i in range(20)]
    text = "".join(line + "他们住在河边的旧房子里，" * 2 + "很安静。\n" for line in lines) + "\n".join(lines[:2])
    assert failed_rules(FineWeb().process(batch_of([text], "zh"))) == [set()]
    menu = "\n".join(lines)
    assert "too many short lines" in failed_rules(FineWeb().process(batch_of([menu], "en")))[0]
    assert "too many short lines" not in failed_rules(FineWeb().process(batch_of([menu], "zh")))[0]


def test_documents_without_any_ended_line_can_be_let_pass() -> None:
    text = "\n".join(f"{i} this line has no end and is long enough" for i in range(5))
    assert failed_rules(FineWeb().process(batch_of([text]))) == [{"too few lines end sentences"}]
    assert failed_rules(FineWeb(allow_no_ended_lines=True).process(batch_of([text]))) == [set()]


def test_the_length_of_short_lines_is_an_option() -> None:
    texts = ["\n".join(f"{i} eleven!." for i in range(5))]
    assert "too many short lines" in failed_rules(FineWeb(short_line_length=11).process(batch_of(texts)))[0]
    assert "too many short lines" not in failed_rules(FineWeb(short_line_length=9).process(batch_of(texts)))[0]


def test_many_lines_are_no_problem() -> None:
    text = "".join(f"Line number {i % 4000} of the text is here.\n" for i in range(5000))
    batch = batch_of(["short", text, "short"])
    counts = shared_counts.lines_of_batch(batch, 30)
    assert counts[1, repetition.FULL_LINES] == 5000
    assert counts[1, repetition.DUPLICATE_LINES] == 1000
    assert counts[[0, 2], repetition.NUM_LINES].tolist() == [1, 1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_what_blocks_share_does_not_change_what_they_decide(order: tuple[int, ...]) -> None:
    blocks = [GopherQuality(), GopherRepetition(), FineWeb()]
    alone = []
    for block in blocks:
        shared_counts.forget()
        alone.append(failed_rules(block.process(batch_of(TEXTS[:200]))))
    dice = np.random.default_rng(0)
    shared_counts.forget()
    for index in order:
        for _ in range(3):
            rows = np.flatnonzero(dice.random(200) < 0.7)
            batch = batch_of(TEXTS[:200]).take(rows)
            assert failed_rules(blocks[index].process(batch)) == [alone[index][row] for row in rows]
            replaced = batch.with_texts(["The text of the house is another now. " + str(i) for i in range(len(batch))])
            assert all("too few stop words" not in rules for rules in failed_rules(blocks[index].process(replaced)))


def test_counts_are_kept_for_what_is_left_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_counts.forget()
    batch = batch_of(TEXTS[:50])
    calls = []
    split = shared_counts.split_words
    monkeypatch.setattr(shared_counts, "split_words", lambda *arguments: calls.append(1) or split(*arguments))
    GopherQuality().process(batch)
    FineWeb().process(batch.keep(np.arange(50) % 3 > 0))
    GopherRepetition().process(batch.slice(10, 40))
    assert len(calls) == 1
    GopherQuality().process(batch_of(["another text"]))
    assert len(calls) == 2


def test_other_texts_of_the_same_lengths_are_counted_anew() -> None:
    shared_counts.forget()
    ended, open_ended = ["A line that ends."] * 2, ["A line that ends,"] * 2
    assert failed_rules(FineWeb().process(batch_of(open_ended)))[0] >= {"too few lines end sentences"}
    assert all("too few lines end sentences" not in rules for rules in failed_rules(FineWeb().process(batch_of(ended))))


@pytest.mark.parametrize(
    ("text", "paragraphs", "duplicates", "characters"),
    [
        ("  a b\n\nx\n\na b \n ", 3, 1, 3),
        ("a\nb\n\n\na\nb\n\na\n b", 3, 1, 3),
        ("a\n \na\n\na\n \na", 2, 1, 5),
        (" \n\n \n", 0, 0, 0),
        ("\u3000é\n\né", 2, 1, 1),
    ],
)
def test_paragraphs_are_those_of_the_stripped_text(
    text: str, paragraphs: int, duplicates: int, characters: int
) -> None:
    counts = shared_counts.lines_of_batch(batch_of([text]), 30)[0]
    found = counts[[repetition.NUM_PARAGRAPHS, repetition.DUPLICATE_PARAGRAPHS]].tolist()
    assert found == [paragraphs, duplicates]
    assert counts[repetition.DUPLICATE_PARAGRAPH_CHARACTERS] == characters


def test_a_part_of_a_larger_buffer_is_judged_as_it_stands() -> None:
    whole = FineWeb().process(batch_of(TEXTS[:60]))
    shared_counts.forget()
    part = FineWeb().process(batch_of(TEXTS[:60]).slice(20, 45))
    assert failed_rules(part) == failed_rules(whole)[20:45]
