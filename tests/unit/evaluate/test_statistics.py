"""Intervals that cover, tests that find what is there and not what is not."""

import math

import numpy as np
import pytest

from glmforge.errors import DataError
from glmforge.evaluate.statistics import (
    POWER,
    compare,
    detectable_difference,
    estimate,
    majority,
    pass_at_k,
)


@pytest.mark.parametrize(("share", "num_items"), [(0.5, 50), (0.95, 100), (0.02, 200)])
def test_single_items_interval_covers(share: float, num_items: int) -> None:
    """Of 2,000 samples about 95 % cover the truth: Wilson's own coverage swings by two points at these sizes, and the
    standard error of the share is half a point."""
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        found = estimate((draw.random(num_items) < share).astype(float))
        assert 0 <= found.low <= found.mean <= found.high <= 1
        covered += found.low <= share <= found.high
    assert abs(covered / 2000 - 0.95) < 0.04


def test_clusters_widen_the_interval_so_that_it_covers() -> None:
    """20 passages of 10 questions that share half of their luck: taken for 200 items, the interval is too narrow."""
    draw = np.random.default_rng(1)
    covered, covered_as_items = 0, 0
    for _ in range(1000):
        passage = draw.normal(0, 1, 20)
        scores = (passage[:, None] + draw.normal(0, 1, (20, 10))).flatten()
        found, as_items = estimate(scores, np.repeat(np.arange(20), 10).tolist()), estimate(scores)
        covered += found.low <= 0 <= found.high
        covered_as_items += as_items.low <= 0 <= as_items.high
    assert abs(covered / 1000 - 0.95) < 0.03
    assert covered_as_items / 1000 < 0.75


def test_small_cases_by_hand() -> None:
    scores = np.array([0.0, 0.5, 1.0, 0.25])
    assert estimate(scores, ["a", "b", "c", "d"]).stderr == pytest.approx(scores.std(ddof=1) / 2)
    assert estimate([1.0] * 20).low == pytest.approx(0.8389, abs=1e-4)  # Wilson: 20 of 20
    assert math.isnan(estimate([0.3, 0.4], ["same", "same"]).low)


def test_values_that_do_not_vary_are_no_certainty() -> None:
    """Ten passages of ten items, all right: a share of 26 % of other ones is missed with probability 5 %."""
    right = estimate([1.0] * 100, [n // 10 for n in range(100)])
    assert (right.low, right.high) == (pytest.approx(0.741, abs=1e-3), 1.0)
    bits = compare([-1.5, -2.0], [-1.5, -2.0])  # no shares: nothing bounds what other items do
    assert (bits.p_value, math.isnan(bits.difference.low), math.isnan(bits.detectable)) == (1.0, True, True)
    same_step = compare([0.2, 0.3, 0.4], [0.3, 0.4, 0.5])  # equal but for rounding
    assert (same_step.test, same_step.p_value) == ("sign, exact", pytest.approx(0.25))
    assert same_step.difference.low < 0 < same_step.difference.high


def simulated(draw: np.random.Generator, num_items: int, drop: float, flips: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores of two models, of which the second is worse by `drop`; a share of `flips` items differs."""
    old = draw.random(num_items) < 0.6
    falls = draw.random(num_items) < (flips + drop) / 2 / 0.6
    rises = draw.random(num_items) < (flips - drop) / 2 / 0.4
    return old.astype(float), np.where(old, ~falls, rises).astype(float)


def test_a_drop_of_three_points_is_found_with_the_stated_power_and_noise_is_not() -> None:
    """1,000 pairs each, of as many items as show 3 points at 10 % flips. McNemar's exact test is a little conservative:
    its power stays within 4 points of the stated one, its false alarms below 5 %."""
    flips, drop = 0.1, 0.03
    num_items = next(n for n in range(100, 5000, 10) if detectable_difference(n, flips) <= drop)
    assert num_items == 880
    draw = np.random.default_rng(2)
    found = sum(compare(*simulated(draw, num_items, drop, flips)).is_significant for _ in range(1000))
    alarms = sum(compare(*simulated(draw, num_items, 0.0, flips)).is_significant for _ in range(1000))
    assert found / 1000 == pytest.approx(POWER, abs=0.04)
    assert alarms / 1000 < 0.06


def test_paired_comparison() -> None:
    old, new = [1.0, 1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0, 1.0]
    found = compare(old, new)
    assert (found.num_better, found.num_worse, found.test) == (1, 2, "McNemar, exact")
    assert found.p_value == pytest.approx(1.0)  # 1 of 3 flips
    assert found.difference.mean == pytest.approx(-0.2)
    assert compare(old, old).p_value == 1.0
    assert compare([0.0] * 10, [1.0] * 10).p_value == pytest.approx(2 / 2**10)
    assert compare([0.5, 0.2, 0.1], [0.6, 0.3, 0.4]).test == "Student, paired"


@pytest.mark.parametrize(("scores", "message"), [([], "no items"), ([0.1, math.nan], "item 1 is not a finite")])
def test_what_cannot_be_estimated(scores: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        estimate(scores)
    with pytest.raises(DataError, match="cannot compare 1 items with 2"):
        compare([0.0], [0.0, 1.0])


def test_pass_at_k_is_the_mean_over_all_choices_of_k() -> None:
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(5, 4, 2) == 1.0
    assert pass_at_k(3, 0, 3) == 0.0
    with pytest.raises(DataError, match="pass@8 needs 8 samples"):
        pass_at_k(4, 1, 8)


def test_majority() -> None:
    def same(a: str, b: str) -> bool:
        return float(a) == float(b)

    assert majority(["2", "3", "3.0", None, "4"], same) == 1
    assert majority(["2", "3"], same) == 0
    assert majority([None, None], same) is None
