"""A plan gathered, in words, as JSON, varied and compared: all of the same figures."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from glmforge.config import RunConfig, load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.lora import parse_lora
from glmforge.plan.answers import answers, layout_words, machine_words
from glmforge.plan.comparison import compared_rows, comparison_as_json, differing_settings
from glmforge.plan.cost.settings import CostSettings
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.machine import Cores, find_machine
from glmforge.plan.machine.measured import CollectivePoint
from glmforge.plan.memory.estimate import MemoryEstimate, PlaceMemory, estimate_memory
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.report import PlannedMemory, PlanReport, as_json, interval_as_json, make_report
from glmforge.plan.stages.stage import find_stage
from glmforge.plan.time.overheads import INTERVAL
from glmforge.plan.variations import vary

RUN = """
name: planned
model: tiny
data: {tokenizer: none, sources: [{name: text, path: none}]}
phases: [{name: main, tokens: 1e6, seq_len: 64, batch_size: 32}]
parallel: {tp: 2, micro_batch_size: 1}
"""


def planned(
    *overrides: str, num_gpus: int = 16, network: str = "ib400", memory: PlannedMemory | None = None
) -> PlanReport:
    config = load_config(RUN, overrides)
    machine = find_machine("H100 SXM", network)
    return make_report(config, config, resolve_layout(config, num_gpus), machine, memory=memory)


def planned_phase(run: RunConfig, num_gpus: int) -> PlanReport:
    """Of the first phase of a run of several."""
    first = select_phase(run, None)
    return make_report(run, first, resolve_layout(first, num_gpus), find_machine("H100 SXM"))


def peak_of(gigabytes: float) -> PlannedMemory:
    sizes = (1e9, gigabytes * 1e9)
    places = (PlaceMemory(rank, Counter({Purpose.WEIGHTS: int(size)}), "forward") for rank, size in enumerate(sizes))
    return PlannedMemory(MemoryEstimate(tuple(places)), "a test")


@pytest.mark.parametrize(("gigabytes", "word"), [(40, "yes"), (76, "hardly"), (81, "no")])
def test_fits_with_a_tenth_to_spare_or_says_so(gigabytes: float, word: str) -> None:
    fit = answers(planned(memory=peak_of(gigabytes)))[0]
    assert fit.question == "Does it fit?"
    assert fit.words.startswith(f"{word}: {gigabytes:.1f} of 80 GB")
    assert "at pipeline rank 1" in fit.words


def test_memory_is_of_closed_forms_unless_given_and_of_the_stage() -> None:
    report = planned()
    assert report.memory.estimate == estimate_memory(report.config, report.layout)
    adapters = find_stage("lora", parse_lora("rank=4,target=q_proj"))
    trained = make_report(report.config, report.config, report.layout, report.machine, stage=adapters)
    held = trained.memory.estimate.fullest.at_peak
    assert held[Purpose.OPTIMIZER] < report.memory.estimate.fullest.at_peak[Purpose.OPTIMIZER] / 10
    found = as_json(trained)
    assert found["stage"] == "lora"
    (model,) = found["models"]
    assert 0 < model["trained"] < model["parameters"] / 100


def test_what_makes_no_sense_is_in_the_plan() -> None:
    assert any("of a micro-batch" in warning for warning in planned().warnings)


def test_all_phases_are_paid_for_and_what_a_layout_does_not_serve_is_named() -> None:
    second = "{name: second, steps: 10, seq_len: 64, batch_size: 36}"
    run = load_config(RUN.replace("batch_size: 32}]", f"batch_size: 32}}, {second}]"))
    report = planned_phase(run, 16)
    price = next(answer for answer in answers(report) if answer.question == "Cost?")
    assert price.words.startswith("$")
    assert any(line.startswith("without second: ") for line in price.details)


def test_a_run_that_never_ends_has_no_price() -> None:
    report = planned()
    config, layout, machine = report.config, report.layout, report.machine
    often = CostSettings(gpu_mtbf_hours=0.01)
    endless = make_report(config, config, layout, machine, settings=often)
    price = next(answer for answer in answers(endless) if answer.question == "Cost?")
    assert price.words == "unknown: no phase has a time"
    assert "$" not in " ".join(price.details)


def test_json_holds_the_figures_of_the_step_and_of_all_parts() -> None:
    report = planned(memory=peak_of(40))
    found = json.loads(json.dumps(as_json(report)))
    assert sum(part["seconds"] for part in found["step"]["parts"].values()) == pytest.approx(found["step"]["seconds"])
    assert found["machine"] | {"gpu": "H100 SXM", "gpus": 16, "nodes": 2} == found["machine"]
    # 1e6 tokens rounded up to steps of 32 x 64, each of the same time
    steps = 489
    assert found["phase_tokens"] == steps * 32 * 64
    assert found["phase_seconds"] == pytest.approx(steps * found["step"]["seconds"])
    assert found["memory"]["peak_bytes"] == 40e9


def test_words_name_machine_and_axes() -> None:
    assert machine_words(planned()) == "16 x H100 SXM, 2 nodes of 8 over ib400"
    assert machine_words(planned(num_gpus=8)) == "8 x H100 SXM, one node"
    assert layout_words(planned("parallel.ep=4").layout) == "dp_shard 8 x tp 2, ep 4"
    assert layout_words(planned("parallel.tp=1", num_gpus=1).layout) == "one rank"


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_the_plan_itself_is_among_its_variations(is_calibrated: bool) -> None:
    report = planned()
    machine = report.machine
    if is_calibrated:
        point = CollectivePoint("all_gather", 8, 8, 1 << 20, seconds=1.0)
        machine = replace(machine, collectives=(point,))
        report = make_report(report.config, report.config, report.layout, machine)
    found = {cell.choice: cell for cell in vary(report.config, report.layout, machine)}
    itself = found["H100 SXM", 16, "ib400", 32]
    assert itself.step is not None
    assert itself.step.seconds == report.step.seconds
    assert itself.peak == report.memory.estimate.peak
    assert {num_gpus for _, num_gpus, *_ in found} == {4, 8, 16, 32, 64}


def test_a_variation_that_cannot_be_says_why() -> None:
    report = planned(num_gpus=64)
    found = {cell.choice: cell for cell in vary(report.config, report.layout, report.machine)}
    too_small = found["H100 SXM", 64, "ib400", 16]
    assert too_small.step is None
    assert "16 sequences do not divide over 32 data ranks" in too_small.reason


def test_costs_are_compared_only_where_both_have_the_same_phases() -> None:
    second = "{name: second, steps: 10, seq_len: 64, batch_size: 40}"
    run = load_config(RUN.replace("batch_size: 32}]", f"batch_size: 32}}, {second}]"))
    plans = [planned_phase(run, num_gpus) for num_gpus in (16, 32)]
    rows = {row.what: row for row in compared_rows(*plans)}
    assert rows["phases with a time"][1:3] == ("2 of 2", "1 of 2")
    assert "whole run" not in rows
    assert "whole run" in {row.what for row in compared_rows(plans[0], plans[0])}


def test_comparison_shows_what_differs_and_nothing_else() -> None:
    first, second = planned(), planned("parallel.tp=1", "parallel.recompute=full", "name=other")
    assert differing_settings(first, second) == [("parallel.tp", "2", "1"), ("parallel.recompute", "none", "full")]
    rows = {row.what: row for row in compared_rows(first, second)}
    assert (rows["layout"].first, rows["layout"].second) == ("dp_shard 8 x tp 2", "dp_shard 16")
    change = second.step.seconds / first.step.seconds - 1
    assert rows["step"].change == f"{change:+.1%}"
    found = json.loads(json.dumps(comparison_as_json(first, second)))
    assert found["settings"]["parallel.tp"] == ["2", "1"]
    assert [plan["run"] for plan in found["plans"]] == ["planned", "other"]


def test_an_uneven_router_takes_time_in_step_and_cost() -> None:
    even = planned("parallel.ep=2")
    uneven = make_report(even.run, even.config, even.layout, even.machine, imbalance=1.5)
    assert uneven.step.parts["imbalance"] > 0
    assert uneven.cost.seconds > even.cost.seconds


def test_every_prediction_of_time_and_cost_has_its_interval() -> None:
    """The factor each way; of cores that ranks share, whose points are measured, none."""
    report = planned()
    found = as_json(report)
    low, high = found["step"]["interval_80"]["seconds"]
    assert (report.step.seconds / low, high / report.step.seconds) == pytest.approx((INTERVAL, INTERVAL))
    dollars = sum(report.cost.dollars.values())
    assert found["cost"]["dollars_80"] == pytest.approx((dollars / INTERVAL, dollars * INTERVAL))
    words = [detail for answer in answers(report)[1:3] for detail in answer.details]
    assert sum("four of five cases" in detail for detail in words) == 2
    shared = replace(report.step, machine=replace(report.machine, cores=Cores(2)))
    assert shared.factor is None
    assert interval_as_json(shared) is None
