import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from glmforge.observe.metrics import METRICS, make_record, metrics_markdown


def test_record_holds_plain_json_in_the_tables_order() -> None:
    record = make_record(
        loss=torch.tensor(2.5), step=np.int64(3), phase="general", dead_experts=np.float64(1), world_size=2
    )
    assert record == {"step": 3, "phase": "general", "world_size": 2, "loss": 2.5, "dead_experts": 1.0}
    assert list(record) == [name for name in METRICS if name in record]
    assert json.loads(json.dumps(record)) == record


def test_a_number_per_source_is_plain_json_too() -> None:
    record = make_record(source_tokens={"web": np.int64(3), "code": torch.tensor(2)})
    assert record == {"source_tokens": {"web": 3, "code": 2}}
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


def test_every_metric_has_its_row_and_its_own_tag() -> None:
    table = metrics_markdown()
    assert all(f"| `{name}` |" in table for name in METRICS)
    assert len({metric.tag for metric in METRICS.values()}) == len(METRICS)


def test_the_docs_show_the_table_as_it_is() -> None:
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8").endswith(metrics_markdown()), "run scripts/doc_tables.py"
