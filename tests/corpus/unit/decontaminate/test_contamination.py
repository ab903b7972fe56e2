"""What counts as an item of an evaluation set in a text."""

import random
from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge_corpus.decontaminate.contamination import Contamination, Matching
from glmforge_corpus.decontaminate.evaluation_sets import EvaluationSet, Item

QUESTION = (
    "A baker fills 14 trays with nine rolls each. She sells two thirds of them before noon, gives 5 to a neighbour and "
    "packs the others evenly into four baskets. How many rolls does each basket hold, and how many are left over?"
)
ANSWER = "There are 126 rolls. After noon 42 are left, and 37 once five were given away, so nine per basket, one over."
FILLER = " ".join(f"The air of day {i} was {'mild' if i % 3 else 'cold'}, station {i * 7} told so." for i in range(60))


def contamination(*passages: str, matching: Matching | None = None) -> Contamination:
    items = [Item("set", str(i), (("question", text),)) for i, text in enumerate(passages)]
    return Contamination.of_items(items, matching)


def edited(text: str, share: float, seed: int) -> str:
    generator = random.Random(seed)
    words = text.split()
    for at in generator.sample(range(len(words)), round(share * len(words))):
        words[at] = "changed"
    return " ".join(words)


@pytest.mark.parametrize(
    "text",
    [
        QUESTION,
        QUESTION.upper(),
        QUESTION.replace(" ", "\n   "),
        QUESTION.replace(",", "").replace(".", " ..."),
        f"{FILLER} {QUESTION} {FILLER}",
        f"Q: {QUESTION}\n\nA: {ANSWER}",
        f"<p>{QUESTION.replace('She', '<b>She</b>')}</p>",
        " ".join(QUESTION.split()[:14]),
    ],
    ids=["verbatim", "upper", "rewrapped", "punctuation", "embedded", "with answer", "html", "14 words"],
)
def test_found_by_a_run_of_words(text: str) -> None:
    (finding,) = contamination(QUESTION).find([FILLER, text])
    assert (finding.document, finding.set_name, finding.item, finding.field) == (1, "set", "0", "question")
    assert finding.rule == "run"
    assert finding.run_words >= 13
    found = text.encode()[finding.start : finding.stop].decode()
    assert found.split()[0].lower().startswith(QUESTION.split()[0].lower())
    assert finding.excerpt == found[: len(finding.excerpt)]


@pytest.mark.parametrize("seed", range(5))
def test_found_by_its_share_though_every_twelfth_word_was_changed(seed: int) -> None:
    words = QUESTION.split()
    text = " ".join("changed" if i % 12 == seed + 4 else word for i, word in enumerate(words))
    (finding,) = contamination(QUESTION).find([text])
    assert finding.rule == "share"
    assert finding.run_words < 13
    assert finding.share >= 0.5


def test_most_copies_with_a_tenth_of_their_words_changed_are_found() -> None:
    # 38 words, 4 changed: the longest run left is 13 or more in most draws, and the share is half in most others.
    found = sum(bool(contamination(QUESTION).find([edited(QUESTION, 0.1, seed)])) for seed in range(40))
    assert found >= 32


@pytest.mark.parametrize("text", [FILLER, "", "?!", " ".join(QUESTION.split()[:12]), QUESTION[::-1]])
def test_not_found(text: str) -> None:
    assert contamination(QUESTION).find([text]) == []


SHORT = "Which river flows through the capital of Austria today?"


def test_a_short_item_is_found_whole_and_with_one_word_in_five_edited() -> None:
    short = contamination(SHORT)
    (finding,) = short.find([f"{FILLER} {SHORT.upper()} {FILLER}"])
    assert (finding.rule, finding.share) == ("whole", 1.0)
    (finding,) = short.find([f"{FILLER} {SHORT.replace('flows', 'runs')} {FILLER}"])
    assert (finding.rule, finding.share) == ("edited", pytest.approx(8 / 9))
    assert finding.excerpt.split()[:3] == ["Which", "river", "runs"]
    assert short.find([SHORT.replace("flows", "runs").replace("today", "now")]) == []
    assert contamination(SHORT, matching=Matching(edited=0)).find([SHORT.replace("flows", "runs")]) == []


TASK = "Write a function that returns the second largest of several numbers given as one string"


@pytest.mark.parametrize("kind", ["replaced", "left out", "added"])
@pytest.mark.parametrize("at", [0, 1, 7, 13, 14])
def test_any_one_word_of_a_short_item_may_be_edited(kind: str, at: int) -> None:
    words = TASK.split()
    assert len(words) == 15
    words[at : at + 1] = {"replaced": ["other"], "left out": [], "added": ["other", words[at]]}[kind]
    text = f"{FILLER}\n{' '.join(words)}.\n{FILLER}"
    (finding,) = contamination(TASK, SHORT).find([text])
    assert finding.item == "0"
    place = text.encode()[finding.start : finding.stop].decode().removesuffix(".\n").split()
    assert " ".join(place) in " ".join(words)
    assert len(place) >= 13  # an edited word at an end, and one beside it, may be left out of the place


def test_edited_places_are_what_trying_every_place_finds() -> None:
    generator = random.Random(5)
    vocabulary = [f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    for _ in range(60):
        passage = generator.sample(vocabulary, generator.randint(8, 14))
        copy = list(passage)
        for _ in range(generator.randint(0, 4)):
            at = generator.randrange(len(copy))
            copy[at : at + 1] = generator.choice(([], ["other"], [copy[at], "other"]))
        text = [*generator.choices(vocabulary, k=20), *copy, *generator.choices(vocabulary, k=20)]
        allowed = int(0.2 * len(passage))
        found = contamination(" ".join(passage)).find([" ".join(text)])
        assert bool(found) == (fewest_edits(passage, text) <= allowed)


def fewest_edits(passage: list[str], text: list[str]) -> int:
    """Levenshtein distance over words to the stretch of text that is nearest."""
    row = [0] * (len(text) + 1)
    for k, word in enumerate(passage, start=1):
        before, row = row, [k]
        for t, other in enumerate(text, start=1):
            row.append(min(before[t - 1] + (word != other), before[t] + 1, row[-1] + 1))
    return min(row)


def test_tasks_that_differ_in_the_word_that_counts_are_two_tasks() -> None:
    shapes = ["cone", "cube", "disc", "ring", "torus", "wedge", "prism", "sphere", "pyramid", "cylinder", "frustum"]
    tasks = [f"Write a function to find the lateral surface area of a {shape}" for shape in shapes]
    loaded = contamination(*tasks)  # all but the last words stand in more than 10 items
    assert loaded.find([tasks[0].replace("cone", "tetrahedron")]) == []
    (finding,) = loaded.find([tasks[0]])
    assert (finding.item, finding.rule, finding.share) == ("0", "whole", 1.0)


def test_a_stem_of_many_items_is_searched_for_with_its_choices() -> None:
    stem = "Which of the statements below about the text that you have just read is not supported by any part of it?"
    choices = [[f"{word} {side} {number}" for side in ("inside", "outside")] for number, word in enumerate(WORDS)]
    items = [Item("set", str(k), (("q", stem),), joined(stem, two)) for k, two in enumerate(choices)]
    loaded = Contamination.of_items(items)
    (summary,) = loaded.summaries
    assert (summary.num_items, summary.num_searchable) == (len(WORDS), len(WORDS))
    for text in (f"{stem}\nA. {choices[3][0]}\nB. {choices[3][1]}", "\n".join([stem, *choices[3]])):
        found = loaded.find([f"{FILLER} {text} {FILLER}"])
        assert {finding.item for finding in found} == {"3"}
    assert loaded.find([stem]) == []


WORDS = [
    "amber", "birch", "cedar", "dogwood", "elm", "fir", "gorse", "hazel", "ivy", "juniper", "kauri", "larch", "maple",
]  # fmt: skip


def joined(stem: str, choices: list[str]) -> tuple[tuple[str, str], ...]:
    lettered = (f"{letter}. {choice}" for letter, choice in zip("AB", choices, strict=True))
    return ("q+c", "\n".join([stem, *choices])), ("q+c", "\n".join([stem, *lettered]))


PROGRAM = (
    "def nth_even_square(limit, step):\n    total = 0\n    for index in range(limit):\n        total += step * index"
)


def test_programs_are_searched_for_unless_they_are_short() -> None:
    items = [
        Item("set", "long", (("code", PROGRAM),)),
        Item("set", "short", (("code", "return max(x for x in y if x > z)"),)),
    ]
    loaded = Contamination.of_items(items)
    assert loaded.summaries[0].num_searchable == 1
    assert [finding.item for finding in loaded.find([f"import os\n\n{PROGRAM}\n    return total"])] == ["long"]
    assert loaded.find([items[1].passages[0][1]]) == []


def test_items_that_are_too_short_are_counted_and_joined_fields_take_their_place() -> None:
    items = [
        Item("set", "joined", (("q", "Too short"),), (("q+c", f"Too short {ANSWER}"),)),
        Item("set", "short", (("q", "Too short, too"),)),
        Item("set", "long", (("q", QUESTION),), (("q+c", f"{QUESTION} {ANSWER}"),)),
    ]
    loaded = Contamination.of_items(items)
    (summary,) = loaded.summaries
    assert (summary.num_items, summary.num_searchable, summary.num_short) == (3, 2, 1)
    assert [finding.item for finding in loaded.find([ANSWER])] == ["joined"]


def test_words_of_many_items_prove_nothing() -> None:
    common = "Answer the following question and give your final result as one single number in a box please"
    prompts = [f"{common}: {word} {QUESTION.replace('baker', word)}" for word in ("one", "two", "three")]
    strict = contamination(*prompts, matching=Matching(common_items=2))
    assert strict.find([common]) == []
    assert len(contamination(*prompts, matching=Matching(common_items=3)).find([common])) == 3


def test_words_of_ignored_texts_prove_nothing(tmp_path: Path) -> None:
    licence = tmp_path / "licence.txt"
    licence.write_text(f"Preamble. {ANSWER}")
    item = f"{ANSWER} {QUESTION}"
    (finding,) = contamination(item, matching=Matching(ignore=(licence,))).find([item])
    assert finding.share == 1.0
    assert finding.run_words < len(item.split())
    assert contamination(item, matching=Matching(ignore=(licence,))).find([ANSWER]) == []
    assert len(contamination(item).find([ANSWER])) == 1


def test_texts_without_spaces_are_compared_by_character() -> None:
    question = "一个农民有三十二只鸡和十五只鸭，他卖掉了其中的一半，还剩下多少只？"
    (finding,) = contamination(question).find([f"今天天气很好。{question.replace('，', '')}"])
    assert finding.rule == "run"


def test_find_does_not_depend_on_how_texts_are_batched() -> None:
    loaded = contamination(QUESTION, ANSWER)
    texts = [QUESTION, FILLER, f"{ANSWER} {QUESTION}"]
    together = [(f.document, f.item, f.start) for f in loaded.find(texts)]
    alone = [(number, f.item, f.start) for number, text in enumerate(texts) for f in loaded.find([text])]
    assert together == alone
    assert len(together) == 3


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run_words 5"):
        contamination(QUESTION, matching=Matching(run_words=5))
    with pytest.raises(DataError, match=r"ignore: .*nothing"):
        Contamination.load([], Matching(ignore=(tmp_path / "nothing",)))
    path = tmp_path / "set.jsonl"
    path.write_text('{"question": "Too short"}')
    with pytest.raises(DataError, match="no item has 8 searchable words"):
        Contamination.load([EvaluationSet(name="tiny", path=path)])
