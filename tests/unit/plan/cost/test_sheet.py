"""The users' sheet, to the dollar, and what its days imply."""

import pytest

from glmforge import load_config
from glmforge.errors import ConfigError
from glmforge.plan.cost.prices import PRICES
from glmforge.plan.cost.sheet import SHEETS, find_sheet, sheet_rows


def test_the_guides_sheet_to_the_dollar() -> None:
    guide = SHEETS["guide"]
    assert guide.gpu_hours == 24_969_216
    assert guide.gpu_dollars == 62_423_040
    assert guide.dollars == 65_923_040


def test_the_small_guides_sheet_is_at_its_own_price() -> None:
    """$138K as the guide says, for H100; the price of the large guide's H800 is told beside it."""
    small = SHEETS["guide-64"]
    assert small.gpu_hours == 46_080
    assert small.dollars == 138_240
    assert small.dollars_per_gpu_hour == PRICES["H100 SXM"].dollars_per_gpu_hour
    assert (small.other_price, small.other_dollars) == (SHEETS["guide"].dollars_per_gpu_hour, 115_200)


def test_its_82_days_are_a_tenth_of_the_peak() -> None:
    """23T tokens, 22T of them at 4K for 232.3 GFLOP each and 1T at 32K for 428.9, are 5.54e24 FLOPs; 8,192 x 989.4
    TFLOP/s for 82 days can do 5.74e25."""
    config = load_config("configs/pretrain_glm45_355b_guide.yaml")
    rows = {row.words: row for row in sheet_rows(config, SHEETS["guide"], 30 * 86400)}
    said = rows["as given: 82 days of training"]
    assert said.utilisation == pytest.approx(0.096, abs=0.001)
    assert rows["as given: 127 days"].utilisation == pytest.approx(0.096 * 82 / 127, abs=0.001)
    assert rows["as given: 127 days"].dollars == 62_423_040
    for share in (0.2, 0.3, 0.4):
        row = rows[f"at {share:.0%} of the peak"]
        assert row.utilisation == pytest.approx(share)
        assert row.days == pytest.approx(82 * said.utilisation / share)
    assert rows["our prediction"].days == pytest.approx(30)


def test_without_a_prediction_there_is_no_row_of_it() -> None:
    config = load_config("configs/scaled_down_64gpu.yaml")
    first, *others = sheet_rows(config, SHEETS["guide-64"], None)
    assert first.words == "as given: 30 days"
    assert [row.utilisation for row in others] == pytest.approx([0.2, 0.3, 0.4])


def test_an_unknown_sheet_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="--sheet: unknown sheet 'mine'; choose one of guide"):
        find_sheet("mine")
