"""Two results, paired by what was asked."""

from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge.evaluate.compare import compare_results, not_compared
from helpers.results import item, made_result, row, written


def test_items_are_paired_by_their_prompts_not_by_their_numbers(tmp_path: Path) -> None:
    """The second result has the items in another order, under other numbers, and one more."""
    old = made_result(tmp_path / "old", [item(n, score, digest=f"d{n}") for n, score in enumerate([1, 1, 0, 0])])
    renamed = [item(9 - n, score, digest=f"d{n}") for n, score in ((3, 1.0), (2, 0.0), (1, 0.0), (0, 1.0))]
    new = made_result(tmp_path / "new", [*renamed, item(77, 1.0, digest="only here")])
    (found,) = compare_results(old, new)
    assert (found.comparison.difference.num_items, found.old_score, found.new_score) == (4, 0.5, 0.5)
    assert [(pair.old.number, pair.new.number) for pair in found.better] == [(3, 6)]
    assert [(pair.old.number, pair.new.number) for pair in found.worse] == [(1, 8)]
    assert found.verdict == "no difference shown"


def test_equal_prompts_are_paired_in_order_and_once(tmp_path: Path) -> None:
    old = made_result(tmp_path / "old", [item(0, 1.0, digest="same"), item(1, 0.0, digest="same")])
    new = made_result(tmp_path / "new", [item(n, 0.0, digest="same") for n in range(3)])
    (found,) = compare_results(old, new)
    assert found.comparison.difference.num_items == 2
    assert [pair.old.number for pair in found.worse] == [0]


def test_items_that_share_a_context_are_one_observation(tmp_path: Path) -> None:
    """40 items fall, in 4 passages of 10 that fall whole or not at all: as single items the fall is certain."""

    def scored(name: str, falls: bool, in_passages: bool) -> Path:
        return made_result(
            tmp_path / name,
            [
                item(n, float(not (falls and n // 10 < 2)), cluster=f"passage {n // 10}" if in_passages else "")
                for n in range(40)
            ],
        )

    (single,) = compare_results(scored("a", False, False), scored("b", True, False))
    (clustered,) = compare_results(scored("c", False, True), scored("d", True, True))
    assert single.comparison.test.startswith("McNemar")
    assert single.verdict == "worse"
    assert clustered.comparison.difference.num_clusters == 4
    assert clustered.verdict == "no difference shown"


def test_other_questions_are_named_and_only_common_ones_compared(tmp_path: Path) -> None:
    items = [item(n, 1.0) for n in range(5)]
    old = made_result(tmp_path / "old", items)
    new = made_result(tmp_path / "new", items[:3], scores=[row(items[:3], fingerprint="fewer questions")])
    (found,) = compare_results(old, new)
    assert not found.same_questions
    assert found.comparison.difference.num_items == 3


def test_nothing_in_common_is_one_line(tmp_path: Path) -> None:
    old = made_result(tmp_path / "old", [item(0, 1.0)])
    new = made_result(tmp_path / "new", [item(0, 1.0, digest="asked otherwise")])
    with pytest.raises(DataError, match="no scored item in common: evaluate both"):
        compare_results(old, new)


def test_no_flipped_item_does_not_prove_equality(tmp_path: Path) -> None:
    """Of 20 items none changed: a share of 14 % of changing ones is met with probability 95 %, so less may be there."""
    same = [item(n, float(n % 2)) for n in range(20)]
    (found,) = compare_results(made_result(tmp_path / "old", same), made_result(tmp_path / "new", same))
    by = found.comparison.difference
    assert (by.low, by.high) == pytest.approx((-0.139, 0.139), abs=1e-3)
    assert found.comparison.detectable > 0.2
    assert found.comparison.p_value == 1.0


def test_a_result_with_itself(tmp_path: Path) -> None:
    """Items that stand twice are two items; of a text only the likelihood is measured."""
    bits = [item(n, -1.5 - n, benchmark="wikitext") for n in range(3)]
    same = made_result(tmp_path, [written(0, 1.0), written(0, 1.0), written(1, 0.0), *bits])
    found = compare_results(same, same)
    assert [one.verdict for one in found] == ["no difference shown"] * 2
    assert [(one.comparison.p_value, one.comparison.difference.mean) for one in found] == [(1.0, 0.0)] * 2
    assert [one.comparison.difference.num_items for one in found] == [3, 3]
    assert not any(one.better or one.worse or one.explained() for one in found)
    assert not_compared(same, same, found) == []


@pytest.mark.parametrize(("before", "after"), [(0.0, 1.0), (0.25, 0.5)])
def test_one_item_shows_nothing(tmp_path: Path, before: float, after: float) -> None:
    old, new = (made_result(tmp_path / f"{score}", [item(0, score)]) for score in (before, after))
    (found,) = compare_results(old, new)
    assert (found.verdict, found.comparison.p_value) == ("no difference shown", 1.0)
    assert len(found.better) == 1


def test_what_is_not_compared_is_said(tmp_path: Path) -> None:
    """Benchmarks of one result only, without common items, and without a score, as where all choices are equally
    likely: their items have scores, which say nothing."""
    both, asked_otherwise = [item(0, 1.0)], item(0, 1.0, benchmark="math", digest="other")
    refused = [item(0, 0.0, benchmark="mmlu")]
    old_items = [*both, item(0, 1.0, benchmark="bbh"), item(0, 0.0, benchmark="math"), *refused]
    new_items = [*both, item(0, 1.0, benchmark="mbpp"), asked_otherwise, *refused]
    old = made_result(tmp_path / "old", old_items)
    rows = [row([one], **({"score": None} if one.benchmark == "mmlu" else {})) for one in new_items]
    new = made_result(tmp_path / "new", new_items, scores=rows)
    found = compare_results(old, new)
    assert [one.benchmark for one in found] == ["gsm8k"]
    assert not_compared(old, new, found) == [
        f"bbh: not compared: {new} does not have it",
        "math: not compared: no item in common",
        f"mmlu: not compared: {new} has no score",
        f"mbpp: not compared: {old} does not have it",
    ]
