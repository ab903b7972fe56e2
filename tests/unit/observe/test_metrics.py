import json
import math

import numpy as np
import pytest
import torch

from glmforge.observe.metric_table import LABEL, SUM, TEXT, Exported, Metric, MetricTable, label_text
from glmforge.observe.metrics import METRICS, make_record, metrics_markdown
from glmforge.recipes.all_metrics import all_metrics


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
    table = metrics_markdown(all_metrics())
    assert all(f"| `{name}` |" in table for name in [*METRICS, "z_loss", "loss_ewc"])
    assert len({metric.tag for metric in all_metrics().values()}) == len(all_metrics())


def test_rows_brought_by_others_stand_in_their_group() -> None:
    table = MetricTable(METRICS.values())
    table.declare([Metric("reward", "1", "reward", "mean reward"), Metric("loss_kl", "nats/token", "loss", "KL")])
    names = list(table)
    assert (names[names.index("extra_losses") + 1], names[-1]) == ("loss_kl", "reward")
    assert table.record({"reward": 1.0, "loss_kl": 0.5, "loss": 2.0}) == {"loss": 2.0, "loss_kl": 0.5, "reward": 1.0}
    assert "reward" not in METRICS


@pytest.mark.parametrize(
    ("row", "refused"),
    [
        (Metric("loss", "1", "loss", "another loss"), "'loss' is declared twice: as .* and as 'another loss'"),
        (METRICS["loss"]._replace(kind=SUM), "'loss' is declared twice"),
        (Metric("checkpoint_bytes_total", "bytes", "run", "all"), "and 'checkpoint_bytes' have the same name in Prom"),
        (Metric("mean reward", "1", "rl", "mean"), "'mean reward' must consist of letters, digits and single"),
        (Metric("reward", "1", "rl", "mean", labels=("__env",)), "'__env' must consist of letters, digits and single"),
        (Metric("reward", "1", "evaluation", "mean", labels=("source",)), "two labels .* the same name"),
        (Metric("said", "text", "rl", "what it said", TEXT, ("env",)), "a text has no labels"),
    ],
)
def test_a_row_that_contradicts_another_or_fits_no_sink_is_refused(row: Metric, refused: str) -> None:
    table = MetricTable(METRICS.values())
    with pytest.raises(ValueError, match=refused):
        table.declare([row])
    assert dict(table) == dict(METRICS)
    table.declare([METRICS["loss"]])  # the same row again, as of a second phase


@pytest.mark.parametrize(
    ("name", "value"), [("source_loss", 2.0), ("loss", {"web": 2.0}), ("expert_load", [1.0]), ("loss", "high")]
)
def test_a_value_without_its_labels_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"metric '{name}' is (one number|a number for each .*), not "):
        make_record(**{name: value})


def test_prometheus_has_a_name_a_type_and_labels_for_every_number() -> None:
    rows = [
        Metric("env", "text", "rl", "environment", LABEL),
        Metric("wins", "1", "rl", "games won", SUM, ("side", "depth")),
        Metric("said", "text", "rl", "what it said", TEXT),
    ]
    table = MetricTable([*METRICS.values(), *rows])
    assert table.exported("wins") == Exported(
        "glmforge_wins_total", "counter", "games won (1)", ("env", "side", "depth")
    )
    assert table.exported("nll") == Exported(
        "glmforge_nll", "gauge", "held-out cross-entropy per token (nats/token)", ("source",)
    )
    assert table.exported("checkpoint_seconds_total").name == "glmforge_checkpoint_seconds_total"  # type: ignore[union-attr]
    assert [table.exported(name) for name in ("said", "env", "phase")] == [None] * 3
    assert list(table["wins"].points({"left": [1, 2], "a\nb": [3]})) == [
        (("left", "00"), 1),
        (("left", "01"), 2),
        (("a\\nb", "00"), 3),
    ]


def test_label_values_are_one_line_that_every_sink_can_encode() -> None:
    hostile = 'say "hi"\n\x1b[31m\u2028\udc80 \u00e9'
    assert label_text(hostile) == 'say "hi"\\n\\x1b[31m\\u2028\\udc80 \u00e9'
    label_text(hostile).encode()
