"""An objective and a recipe bring metrics that nothing else knows, from their sums to every sink."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from glmforge.backend.objective import MetricSum
from glmforge.data.stream.batch import Batch
from glmforge.model.loss import CrossEntropy
from glmforge.model.transformer import ForwardOutput
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.observe.metric_table import SUM, Metric, label_text
from glmforge.observe.metrics import METRICS
from glmforge.observe.record_files import read_jsonl
from glmforge.parallel.inputs import TokenShare
from glmforge.recipes import token_shards
from glmforge.recipes.curriculum_source import CurriculumSource
from glmforge.recipes.train import train
from glmforge.report.report import write_report
from helpers.tiny_data import TinyData

HOSTILE = 'say "</script><b>hi</b>"\n{x="1"} \udc80'


class Sides(NextTokenObjective):
    """Tells what share of the labels are predicted badly, and how many labels were asked for."""

    metric_rows = (
        *NextTokenObjective.metric_rows,
        Metric("share", "fraction", "sides", "share of labels on each side", labels=("side",)),
        Metric("asked", "tokens", "sides", "labels since the last record", SUM),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metrics += (MetricSum("bad"),)

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[CrossEntropy], batch: Batch, share: TokenShare
    ) -> None:
        super().add_metrics(sums, output, batch, share)
        if output.is_last:
            sums["bad"] += (output.main.nll_T > 1).sum()

    def metric_values(self, sums: Mapping[str, Tensor]) -> Mapping[str, object]:
        asked = sums["source_tokens"].sum()
        bad = sums["bad"].item() / asked.item()
        return {"asked": asked, "share": {HOSTILE: bad, "good": 1 - bad}}


def test_they_are_in_every_sink_and_the_report_passes_over_them(
    tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Metric("files_open", "files", "run", "files that the source reads")
    monkeypatch.setattr(token_shards, "NextTokenObjective", Sides)
    monkeypatch.setattr(token_shards.TokenShardRecipe, "metric_rows", (row,))
    monkeypatch.setattr(CurriculumSource, "metrics", lambda self: {"files_open": 3})
    config = tiny_data.run_config(
        tmp_path,
        phases=[{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 2}],
        observe={"log_every": 2, "progress": False, "tensorboard": True},
    )
    train(config)
    records = read_jsonl(tmp_path / "metrics.jsonl")
    for record in records:
        assert set(record["share"]) == {HOSTILE, "good"}
        assert sum(record["share"].values()) == pytest.approx(1)
        assert record["files_open"] == 3
    first, second = (record["asked"] for record in records)
    assert first + second == sum(records[-1]["source_tokens"].values())  # of two steps each
    scalars = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    drawn = scalars.Scalars(f"sides/share/{label_text(HOSTILE)}")
    assert [(event.step, event.value) for event in drawn] == [
        (record["step"], pytest.approx(record["share"][HOSTILE])) for record in records
    ]
    assert [event.value for event in scalars.Scalars("sides/asked")] == [first, second]
    assert [event.value for event in scalars.Scalars("run/files_open")] == [3, 3]
    write_report(tmp_path)
    assert "</script><b>" not in (tmp_path / "report.html").read_text()
    assert not {"share", "asked", "files_open"} & set(METRICS)  # another run of this process does not have them
