"""What a collective reached against what its link should give."""

import pytest

from glmforge.errors import ConfigError
from glmforge_ops.health.collectives.rows import Row, make_row
from glmforge_ops.health.collectives.verdict import Expected, expect, judge

H800 = Expected(busbw=170, ceiling=200, source="NVLink, 400 GB/s in both directions")


def row_of(busbw: float, wrong: int | None = 0) -> Row:
    """An all-reduce of 1 GB on 8 ranks."""
    return make_row("all_reduce", 250_000_000, "float32", 8, seconds=1.75 / busbw, wrong=wrong)


@pytest.mark.parametrize(
    ("busbw", "status", "words"),
    [
        (165, "pass", "165 GB/s at 1,000,000,000 bytes, 170 expected"),
        (137, "pass", "137 GB/s"),
        (135, "fail", "less than 136 (0.8 of 170, NVLink, 400 GB/s in both directions)"),
        (300, "fail", "more than the link's 200 GB/s"),
    ],
)
def test_between_the_threshold_and_what_the_link_carries(busbw: float, status: str, words: str) -> None:
    (verdict,) = judge([row_of(20), row_of(busbw)], H800)
    assert (verdict.status, verdict.value, verdict.threshold) == (status, pytest.approx(busbw), pytest.approx(136))
    assert words in verdict.message


def test_wrong_elements_fail_however_fast_it_was() -> None:
    (verdict,) = judge([row_of(20, wrong=2), row_of(165, wrong=None), row_of(160, wrong=1)], H800)
    assert verdict.status == "fail"
    assert "3 elements are wrong" in verdict.message


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_an_expectation_that_cannot_be(value: float) -> None:
    with pytest.raises(ConfigError, match="--expect"):
        expect(value)
