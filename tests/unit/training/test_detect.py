"""The robust score by hand, and that outliers do not hide each other."""

import math

import numpy as np
import pytest

from glmforge.training.detect import RobustWindow


def filled(values: list[float], window: int = 16, threshold: float = 8.0) -> RobustWindow:
    detector = RobustWindow(window, threshold)
    for value in values:
        detector.add(value)
    return detector


def test_score_by_hand() -> None:
    detector = filled([1.0, 2.0, 3.0, 4.0, 100.0], window=8)
    # median 3, deviations 2 1 0 1 97, their median 1
    assert detector.median == 3.0
    assert detector.score(6.0) == pytest.approx(3.0 / 1.4826)
    assert detector.score(0.0) == pytest.approx(-3.0 / 1.4826)


def test_of_normal_noise_it_is_the_number_of_standard_deviations() -> None:
    detector = filled(list(np.random.default_rng(0).normal(5.0, 0.1, 4000)), window=4000)
    # The MAD of 4000 samples is known to about 2 %, the median to 0.02 standard deviations.
    assert detector.score(6.0) == pytest.approx(10.0, rel=0.1)


def test_only_high_values_are_outliers_and_one_does_not_hide_the_next() -> None:
    detector = filled([2.0, 2.1, 1.9, 2.05, 1.95, 2.0, 2.1, 1.9])
    assert not detector.is_outlier(0.0)
    for _ in range(3):
        assert detector.is_outlier(9.0)
        detector.add(9.0)


@pytest.mark.parametrize("num_values", [0, 1, 3, 4])
def test_it_does_not_judge_before_a_quarter_of_the_window(num_values: int) -> None:
    detector = filled([2.0] * num_values, window=16)
    for value in (50.0, math.nan, math.inf):
        assert detector.is_outlier(value) == (num_values >= 4)


def test_equal_values_bear_a_small_change() -> None:
    detector = filled([2.0] * 16, threshold=8.0)  # scale: a thousandth of the median
    assert not detector.is_outlier(2.0 + 7.9 * 0.002)
    assert detector.is_outlier(2.0 + 8.1 * 0.002)
    assert filled([0.0] * 16).is_outlier(1e-9)


def test_only_the_last_finite_values_count() -> None:
    detector = filled([*[100.0] * 16, math.nan, *[1.0, 2.0, 3.0, 2.0] * 4, math.inf])
    assert detector.median == 2.0


def test_state_survives_also_into_a_shorter_window() -> None:
    detector = filled([float(n) for n in range(16)])
    same, shorter = RobustWindow(16, 8.0), RobustWindow(8, 8.0)
    same.load_state_dict(detector.state_dict())
    shorter.load_state_dict(detector.state_dict())
    assert same.score(40.0) == detector.score(40.0)
    assert shorter.median == np.median(range(8, 16))
    same.load_state_dict({})
    assert same.score(40.0) == 0.0
