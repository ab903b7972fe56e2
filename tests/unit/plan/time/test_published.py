"""The table of published runs keeps its rules, and nothing is fitted to what is held out."""

import math
from collections import defaultdict

import plan_published
import pytest
from harness import result
from plan_published import SIDES, compare, fit, leave_one_out, published_runs, weights
from published_runs import facts, is_held_out, not_predicted

from glmforge.plan.time.overheads import BOUNDS, FITTED, INTERVAL, Overheads

ROWS = published_runs()
RESULT = result("plan_published")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model}, {row.framework} {row.release}, {row.what}")
def test_a_row_has_its_source_and_a_whole_layout(row) -> None:
    assert facts()["sources"][row.source]
    assert row.model in facts()["models"]
    assert row.tokens_per_second or (row.teraflops and row.counts in ("causal", "full"))
    data_ranks, rest = divmod(row.gpus, row.tp * row.cp * row.pp)
    assert rest == 0
    assert row.batch % (row.passes * data_ranks * row.micro_batch) == 0
    assert (row.vp == 1) or row.pp > 1


def test_what_is_not_predicted_has_its_source_and_a_known_reason() -> None:
    for row in not_predicted():
        assert row["why"] in facts()["not_predicted"]
        assert row["source"] in facts()["sources"]
        assert row["figure"]


def test_a_model_is_on_one_side_and_the_rule_is_the_one_that_was_committed_first() -> None:
    sides = defaultdict(set)
    for row in ROWS:
        sides[row.model].add(row.is_held_out)
    assert all(len(found) == 1 for found in sides.values())
    assert {model for model, (held,) in sides.items() if held} == {
        *("DeepSeek-V3", "GLM-4.5-Air", "GPT-OSS 20B", "Kimi K2", "Llama 3 405B", "Qwen2.5 32B", "Qwen2.5 7B"),
        *("Qwen3 4B", "Qwen3-235B-A22B"),
    }


def test_nothing_can_be_fitted_to_what_is_held_out() -> None:
    """A leak, planted."""
    with pytest.raises(ValueError, match="DeepSeek-V3: held out"):
        fit([row for row in ROWS if not row.is_held_out or row.model == "DeepSeek-V3"])


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch):
    """Ratios along straight lines of `launch` and `grouped`, as if the planner were off by `offsets`."""

    def of(offsets: dict[str, float]) -> None:
        def log_ratio(row, at: Overheads = FITTED) -> float:
            speed = 1e4 * (1 + len(row.model) % 3) * (at.launch - 7e-6)
            return offsets.get(row.model, 0.0) - speed + (row.ep > 1) * (at.grouped - 0.9)

        monkeypatch.setattr(plan_published, "log_ratio", log_ratio)

    return of


def test_held_out_figures_move_no_number(straight) -> None:
    straight({})
    found = plan_published.fit_again()
    assert found["overheads"]["launch"] == pytest.approx(7e-6)
    assert found["overheads"]["grouped"] == pytest.approx(0.9)
    straight({row.model: 5.0 for row in ROWS if row.is_held_out})
    assert plan_published.fit_again() == found


def test_each_model_counts_once_and_a_model_left_out_has_no_say(straight) -> None:
    rows = [row for row in ROWS if row.model in ("Llama 2 7B", "Mixtral 8x7B", "GPT-OSS 120B")]
    assert weights(rows).sum() == pytest.approx(3)
    straight({"Mixtral 8x7B": 0.4})
    fitted, ratios, slopes = fit(rows)
    out = leave_one_out(rows, fitted, ratios, slopes)
    of_mixtral = [ratio for row, ratio in zip(rows, out, strict=True) if row.model == "Mixtral 8x7B"]
    assert of_mixtral == pytest.approx([0.4], abs=0.01)
    assert all(low <= value <= high for value, (low, high) in zip(fitted, BOUNDS, strict=True))


def test_the_planner_has_what_was_fitted() -> None:
    for name, value in RESULT["fit"]["overheads"].items():
        assert getattr(FITTED, name) == pytest.approx(value, rel=0.03, abs=0.5e-6)
    assert pytest.approx(RESULT["fit"]["interval"], abs=0.02) == INTERVAL


def test_the_result_is_that_of_todays_planner_and_todays_table() -> None:
    assert [(row["model"], row["release"], row["what"]) for row in RESULT["rows"]] == [
        (row.model, row.release, row.what) for row in ROWS
    ]
    some = slice(None, None, 9)
    for then, now in zip(RESULT["rows"][some], compare(ROWS[some]), strict=True):
        assert now["ratio"] == pytest.approx(then["ratio"], rel=1e-6)
        assert now["is_inside"] == (abs(math.log(now["ratio"])) <= math.log(INTERVAL))
    for side in SIDES:
        rows = [row for row in RESULT["rows"] if row["side"] == side]
        assert (
            RESULT[side]["rows"] == len(rows) == sum(is_held_out(row["model"]) == (side == "held_out") for row in rows)
        )
        assert RESULT[side]["mean_error"] == pytest.approx(sum(abs(row["ratio"] - 1) for row in rows) / len(rows))


def test_what_is_held_out_is_predicted() -> None:
    """By what was fitted to other models: a fifth in the mean, and four of five inside the interval."""
    found = RESULT["held_out"]
    assert found["mean_error"] < 0.2
    assert found["inside_share"] >= 0.8
