"""Published runs are predicted to within what the model leaves out."""

import plan_published
import pytest


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return plan_published.compare()


def test_errors(rows: list[dict]) -> None:
    """A fifth for a row, an eighth in the mean; none of the model's figures come from these rows."""
    errors = [row["error"] for row in rows]
    assert max(map(abs, errors)) < 0.2
    assert sum(map(abs, errors)) / len(errors) < 1 / 8


def test_models_are_expressed_with_their_own_flops(rows: list[dict]) -> None:
    """Published FLOP/s over published tokens/s say how many FLOPs a token has."""
    counted = {row.name: row for row in plan_published.ROWS if row.tokens_per_second}
    for row in rows:
        if row["name"] in counted:
            published = row["published_tflops"] * 1e12 / row["published_tokens_per_second"]
            assert row["flops_per_token"] == pytest.approx(published, rel=0.02)


def test_leaving_a_row_out_does_not_use_it(rows: list[dict]) -> None:
    """Of two rows each gets the other's factor."""
    first, second = plan_published.compare(plan_published.ROWS[:2])
    assert first["factor_of_others"] == pytest.approx(1 + second["error"])
    assert second["error_with_factor"] == pytest.approx((1 + second["error"]) / (1 + first["error"]) - 1)
