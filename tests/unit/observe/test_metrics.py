import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from glmforge.observe.metrics import METRICS, balance_metrics, expert_load, make_record, metrics_markdown


def test_record_holds_plain_json_in_the_tables_order() -> None:
    record = make_record(
        loss=torch.tensor(2.5), step=np.int64(3), phase="general", dead_experts=np.float64(1), world_size=2
    )
    assert record == {"step": 3, "phase": "general", "world_size": 2, "loss": 2.5, "dead_experts": 1.0}
    assert list(record) == [name for name in METRICS if name in record]
    assert json.loads(json.dumps(record)) == record


def test_what_is_not_known_is_absent() -> None:
    assert make_record(step=1, mfu=None) == {"step": 1}


def test_zero_and_nan_are_values_and_stay() -> None:
    record = make_record(step=0, loss=math.nan)
    assert record["step"] == 0
    assert math.isnan(record["loss"])


@pytest.mark.parametrize(
    ("name", "hint"),
    [("los", "did you mean 'loss'"), ("max_violation", "did you mean 'max_violation"), ("zzz", "zzz")],
)
def test_a_name_outside_the_table_is_refused_with_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        make_record(step=1, **{name: 1.0})


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="'loss' has a value of type object"):
        make_record(loss=object())


def test_balance_of_an_even_load_is_perfect() -> None:
    metrics = balance_metrics(np.full((2, 4), 7))
    expected = {"max_violation_mean": 0, "max_violation_max": 0, "load_cv_mean": 0, "load_cv_max": 0,
                "load_entropy_mean": 1, "load_entropy_min": 1, "dead_experts": 0}  # fmt: skip
    # Sums of four quarters: off by a few units in the last place of a double at most.
    assert metrics == pytest.approx(expected, abs=1e-12)


def test_balance_by_hand() -> None:
    # Layer 0: all 8 tokens on one of 4 experts. Layer 1: loads 4, 4, 0, 0.
    metrics = balance_metrics([[8, 0, 0, 0], [4, 4, 0, 0]])
    assert metrics["max_violation_max"] == pytest.approx(8 / 2 - 1)
    assert metrics["max_violation_mean"] == pytest.approx((3 + 1) / 2)
    assert metrics["load_cv_max"] == pytest.approx(math.sqrt(3))  # deviations 3, -1, -1, -1 of a mean of 1
    assert metrics["load_cv_mean"] == pytest.approx((math.sqrt(3) + 1) / 2)
    assert metrics["load_entropy_min"] == pytest.approx(0)
    assert metrics["load_entropy_mean"] == pytest.approx((0 + math.log(2) / math.log(4)) / 2)
    assert metrics["dead_experts"] == 5


def test_balance_takes_a_tensor_of_counts() -> None:
    counts = torch.tensor([[3, 1], [1, 3]])
    assert balance_metrics(counts) == balance_metrics(counts.tolist())
    assert expert_load(counts) == [[0.75, 0.25], [0.25, 0.75]]


@pytest.mark.parametrize(
    ("counts", "message"),
    [([[1, 2], [0, 0]], "layer 1 routed no token"), ([1, 2], r"expected \[layers, experts\]")],
)
def test_counts_without_a_balance_are_refused(counts: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balance_metrics(counts)


def test_every_metric_has_its_row_and_its_own_tag() -> None:
    table = metrics_markdown()
    assert all(f"| `{name}` |" in table for name in METRICS)
    assert len({metric.tag for metric in METRICS.values()}) == len(METRICS)


def test_the_docs_show_the_table_as_it_is() -> None:
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8").endswith(metrics_markdown())
