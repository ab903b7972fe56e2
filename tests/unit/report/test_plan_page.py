"""The page of a plan: it needs nothing else, and its form looks up what was planned."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.memory.estimate import MemoryEstimate, PlaceMemory
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.report import PlannedMemory, PlanReport, make_report
from glmforge.report.plan_comparison import write_comparison
from glmforge.report.plan_memory import memory_bars
from glmforge.report.plan_page import write_plan

RUN = """
name: planned
model: tiny
data: {tokenizer: none, sources: [{name: text, path: none}]}
phases: [{name: "</script><b>", tokens: 1e6, seq_len: 64, batch_size: 32}]
parallel: {micro_batch_size: 1}
"""


def planned(*overrides: str, sizes: dict[str, int] | None = None) -> PlanReport:
    config = load_config(RUN, overrides)
    memory = None
    if sizes:
        at_peak = Counter({Purpose(name): size for name, size in sizes.items()})
        memory = PlannedMemory(MemoryEstimate((PlaceMemory(0, at_peak, "forward"),)), "a test")
    return make_report(config, config, resolve_layout(config, 16), find_machine("H100 SXM"), memory=memory)


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="plan">(.*?)</script>', page, re.DOTALL)[1])


def test_the_form_begins_with_the_plan(tmp_path: Path) -> None:
    report = planned()
    data = data_of(write_plan(report, tmp_path / "plan.html").read_text())
    seconds, parts, peak = data["cells"][
        "|".join(str(data["asked"][axis]) for axis in ("gpu", "gpus", "network", "batch"))
    ]
    assert seconds == pytest.approx(report.step.seconds, rel=1e-5)  # six digits are written
    shown = {name: part for name, part in zip(data["parts"], parts, strict=True) if part}
    assert shown == pytest.approx(report.step.parts, rel=1e-4)
    assert peak == report.memory.estimate.peak
    # what the script computes from them
    mfu = data["flops_per_token"] * 32 * 64 / seconds / (16 * data["peaks"]["H100 SXM"])
    assert mfu == pytest.approx(report.step.utilisation, rel=1e-5)
    assert data["tokens"] == report.phase_tokens


def test_the_page_needs_nothing_else_and_holds_no_markup_of_the_config(tmp_path: Path) -> None:
    page = write_plan(planned(sizes={"weights": 10**9}), tmp_path / "plan.html").read_text()
    assert not re.search(r'(src|href)="|url\(|@import|fetch\(', page)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<b>" not in page.split("<h1>")[1].split("<h2>")[0]
    assert "shards over all nodes (planned)" in page


def test_bars_are_of_the_devices_memory_unless_more_is_needed() -> None:
    small = memory_bars(planned(sizes={"weights": 20 * 10**9, "activations": 20 * 10**9}))
    assert small is not None
    widths = [part.percent for part in small.rows[0].parts if part.percent]
    assert widths == pytest.approx([25 / 1.02] * 2, abs=1e-3)
    assert small.device_percent == pytest.approx(100 / 1.02)
    large = memory_bars(planned(sizes={"weights": 160 * 10**9}))
    assert large is not None
    assert (large.rows[0].parts[0].percent, large.device_percent) == pytest.approx((100 / 1.02, 50 / 1.02), abs=1e-3)


def test_a_page_of_two_plans(tmp_path: Path) -> None:
    page = write_comparison(planned(), planned("parallel.tp=2"), tmp_path / "two.html").read_text()
    assert "parallel.tp" in page
    assert "<h3>first</h3>" in page


def test_a_page_has_the_name_of_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--page: .*plan\.pdf: does not end in \.html"):
        write_plan(planned(), tmp_path / "plan.pdf")


def test_all_that_a_pipeline_does_has_a_colour(tmp_path: Path) -> None:
    schedule = ("model.num_hidden_layers=4", "parallel.pp=2", "parallel.pipeline_schedule=zbv")
    report = planned(*schedule, "optim.matrix_optimizer=muon", "checkpoint.every_steps=1")
    drawn = {"forward", "input", "weight", "reduce", "update", "exchange", "checkpoint"}
    assert {span.task for span in report.step.timeline} == drawn
    page = write_plan(report, tmp_path / "plan.html").read_text()
    assert "exchange" in page
