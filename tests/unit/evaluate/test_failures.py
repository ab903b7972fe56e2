"""Failed replies by kind, and what the evidence supports."""

from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge.evaluate.failures import Kind, failures_of, find_failures, kind_of_failure
from helpers.results import chosen, item, made_result, reply, written

LOOP = "It is a list of a list of a list of a list of a list of a list of a list of a list " * 8
PROSE = (
    "First we count the hens in the yard, then subtract those which were sold on Monday; what remains lays two eggs "
    "daily, so by Friday there would be twenty eggs, minus whatever broke on the road to market that week. Therefore 5."
)


@pytest.mark.parametrize(
    ("text", "fields", "kind"),
    [
        (PROSE, {}, "wrong"),
        (PROSE, {"extracted": None}, "no format"),
        (PROSE, {"is_cut": True}, "cut"),
        ("<think>so many hens", {"answer": "", "is_cut": True}, "cut"),
        ("<think>hm</think>\n", {"answer": " \n", "extracted": None}, "no answer"),
        (LOOP, {}, "repetition"),
        (LOOP, {"is_cut": True}, "repetition"),  # a longer answer would not help
        ("答案是五只鸡 because of the hens", {}, "mixed"),
        ("It is 0" + ".0" * 50, {"is_cut": True}, "repetition"),
        ("Half of 10 hens: the answer is $5.00.", {"extracted": "10"}, "extraction"),
        ("\\boxed{5}", {"extracted": None}, "extraction"),
        ("The answer is " + "9" * 5000, {}, "repetition"),
        ("5 5 5 5", {}, "wrong"),  # short texts are not judged for repetition
    ],
)
def test_kinds(text: str, fields: dict[str, object], kind: Kind) -> None:
    assert kind_of_failure(item(0, 0.0, target="10 / 2 = 5\n#### 5"), reply(text, **fields)) == kind


def test_a_writing_system_of_the_prompt_is_not_mixed() -> None:
    asked = item(0, 0.0, prompt="How many hens (鸡) are left?")
    assert kind_of_failure(asked, reply("答案是五只鸡 because of the hens")) == "wrong"


def test_longer_answers_gain_what_finished_ones_score() -> None:
    """Of ten replies four were cut and score 0; the six others score 50 %. Two of the cut ones repeat themselves."""
    whole = [written(n, float(n % 2)) for n in range(6)]
    cut = [written(n, 0.0, PROSE if n < 8 else LOOP, is_cut=True, extracted=None) for n in range(6, 10)]
    found = find_failures("gsm8k", [*whole, *cut])
    assert dict(found.kinds) == {"wrong": 3, "cut": 2, "repetition": 2}
    longer = next(one for one in found.advice if "--max-new-tokens" in one.change)
    assert longer.gain == pytest.approx(0.5 * 2 / 10)
    assert "2 of 10 replies were cut" in longer.evidence
    assert "50.0%" in longer.evidence


def test_gains_that_nothing_supports_are_not_claimed() -> None:
    all_cut = find_failures("gsm8k", [written(n, 0.0, PROSE, is_cut=True) for n in range(4)])
    assert [one.gain for one in all_cut.advice] == [None]
    all_wrong = find_failures("gsm8k", [written(n, 0.0) for n in range(4)])
    assert all_wrong.advice == ()


def test_a_model_that_always_chooses_one_place_is_found() -> None:
    items = [chosen(n, 0, n % 4) for n in range(20)]
    (advice,) = find_failures("mmlu", items).advice
    assert "place 1 in 20 of 20 items, 5 of them rightly" in advice.evidence
    assert find_failures("mmlu", [chosen(n, n % 4, n % 4) for n in range(20)]).advice == ()


def test_groups_are_in_order_and_count_each_item_once() -> None:
    items = [
        written(n, float(n < 6)).model_copy(update={"level": f"{n % 3 + 1}", "prompt": "x" * n}) for n in range(12)
    ]
    found = find_failures("math", items)
    assert [group.name for group in found.by_level] == ["1", "2", "3"]
    assert [group.num_items for group in found.by_length] == [3, 3, 3, 3]
    assert [group.score for group in found.by_length] == [1.0, 1.0, 0.0, 0.0]
    assert sum(group.kinds.total() for group in found.by_length) == found.kinds.total() == 6


def test_likelihood_of_a_text_cannot_fail() -> None:
    """Perplexity tasks score negative bits: no item of them is wrong."""
    assert find_failures("wikitext", [item(0, -1.2, benchmark="wikitext")]).failures == ()


def test_unknown_benchmark_is_one_line(tmp_path: Path) -> None:
    made_result(tmp_path, [written(0, 0.0)])
    with pytest.raises(DataError, match="has no benchmark mmlu; it has gsm8k"):
        failures_of(tmp_path, "mmlu")


def test_right_answers_that_the_filter_misses_are_advice_with_their_gain() -> None:
    missed = [written(n, 0.0, "The answer is 4 eggs.", extracted="9") for n in range(3)]
    (advice,) = find_failures("gsm8k", [*missed, written(3, 0.0, "The answer is 7.")]).advice
    assert advice.gain == 0.75
    assert str(advice) == "ask for the form that the task reads, or use a task with another filter (up to 75.0 points)"
    assert "3 of 4 replies give the right answer" in advice.evidence
