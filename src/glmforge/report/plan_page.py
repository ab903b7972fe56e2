"""A plan as a self-contained interactive page, to print or send around.

What the terminal says stands on top. Below it is a form: every combination of GPU, number, network and batch that it
offers was planned beforehand (`glmforge.plan.variations`), so the page has no model of its own that could disagree with
the planner; its script looks up, multiplies by price and tokens, and draws.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmforge.config import dump_config
from glmforge.extras import needed_for
from glmforge.observe.run import write_text
from glmforge.observe.units import format_count, format_duration, format_seconds
from glmforge.plan.across_nodes import advice
from glmforge.plan.answers import (
    NODE_COLUMNS,
    Answer,
    answers,
    candidate_words,
    dollar_words,
    layout_words,
    machine_words,
    node_rows,
    nodes_title,
    saved_share,
    subject_words,
)
from glmforge.plan.cost.prices import price_of
from glmforge.plan.cost.settings import CostSettings
from glmforge.plan.layout import axis_rows
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.report import PlanReport, stage_summary
from glmforge.plan.variations import Variation, vary
from glmforge.report.page import Column, Summary, Table, Tile, check_suffix, make_table, page_template
from glmforge.report.plan_memory import MemoryBars, memory_bars

if TYPE_CHECKING:
    from glmforge.report.canvas import Figure


@dataclass(frozen=True)
class _Plan:
    """What the template shows besides."""

    answers: list[Answer]
    warnings: tuple[str, ...]
    phase: str
    memory: MemoryBars
    figures: "list[Figure]"
    variations: dict[str, Any]


_CHOICES = ("gpu", "gpus", "network", "batch")
"""Fields of the form, in the order of `Variation.choice`."""


def write_plan(report: PlanReport, out: Path) -> Path:
    """Write the page of a plan to `out`, which it returns. Raises `ConfigError` for a suffix other than .html and
    `MissingPackageError` if matplotlib is not installed."""
    check_suffix(out, "--page")
    with needed_for("--page: drawing"):
        from glmforge.report.plan_figures import draw_pareto, draw_pipeline
    drawn = [draw_pipeline(report.step.timeline), draw_pareto(report)]
    figures = [figure for figure in drawn if figure is not None]
    phase = report.config.phases[0].name
    plan = _Plan(answers(report), report.warnings, phase, memory_bars(report), figures, variations_as_json(report))
    page = page_template("plan.html")
    write_text(out, page.render(summary=_summarize(report), plan=plan, config=dump_config(report.run)))
    return out


def variations_as_json(report: PlanReport) -> dict[str, Any]:
    """What the form looks up. `cells`: seconds of a step and its parts, bytes of the peak; or why they are missing."""
    found = list(vary(report.config, report.layout, report.machine, report.stage))
    devices = list({cell.machine.accelerator.name: cell.machine.accelerator for cell in found}.values())
    parts = sorted({name for cell in found if cell.step for name in cell.step.parts})
    phase = report.config.phases[0]
    return {
        "axes": {
            name: sorted(set(values)) if isinstance(values[0], int) else list(dict.fromkeys(values))
            for name, values in zip(_CHOICES, zip(*(cell.choice for cell in found), strict=True), strict=True)
        },
        "asked": dict(zip(_CHOICES, _asked(report), strict=True)),
        "memory": {row.name: row.memory_bytes for row in devices},
        "peaks": {row.name: row.bf16_flops for row in devices},
        "prices": _prices(report, devices),
        "goodput": round(100 * report.cost.goodput, 1),
        "parts": parts,
        "seq_len": phase.seq_len,
        "tokens": report.phase_tokens,
        "flops_per_token": report.step.model_flops / report.step.tokens,
        "cells": {"|".join(map(str, cell.choice)): _cell(cell, parts) for cell in found},
    }


def _asked(report: PlanReport) -> tuple[str, int, str, int]:
    machine = report.machine
    batch_size = report.config.phases[0].batch_size
    return machine.accelerator.name, report.layout.world_size, machine.network.name, batch_size


def _prices(report: PlanReport, devices: list[Accelerator]) -> dict[str, float]:
    """Dollars for a GPU-hour; a price that was given is that of the GPU that it was given for."""
    own, prices = report.machine.accelerator.name, {}
    for device in devices:
        price = report.cost.price if device.name == own else price_of(device, CostSettings())
        if price is not None:
            prices[device.name] = price.dollars_per_gpu_hour
    return prices


def _cell(cell: Variation, parts: list[str]) -> list[Any] | str:
    if cell.step is None:
        return cell.reason
    digits = (float(f"{cell.step.parts.get(name, 0.0):.5g}") for name in parts)
    return [float(f"{cell.step.seconds:.6g}"), list(digits), cell.peak]


def _summarize(report: PlanReport) -> Summary:
    model = report.config.model
    return Summary(
        name=report.run.name,
        lead=f"{subject_words(report)} on {machine_words(report)} · {layout_words(report.layout)} · "
        f"{model.num_hidden_layers} layers of width {model.hidden_size}, {model.num_experts_per_tok} of "
        f"{model.n_routed_experts} experts active",
        tiles=_tiles(report),
        tables=[
            *_models(report),
            *_pareto(report),
            _levers(report),
            _cost(report),
            *_nodes(report),
            _traffic(report),
            _layout(report),
        ],
    )


def _tiles(report: PlanReport) -> list[Tile]:
    step, cost = report.step, report.cost
    tiles = [
        Tile("GPUs", f"{report.layout.world_size:,}", report.machine.accelerator.name),
        Tile("Memory", f"{report.memory_share:.0%}", "of a GPU, fullest rank"),
        Tile("Step", format_seconds(step.seconds), f"{format_count(step.tokens)} tokens"),
        Tile("Tokens per second", format_count(step.tokens_per_second)),
        Tile("MFU", f"{step.utilisation:.1%}"),
    ]
    if cost.seconds:
        tiles.append(Tile("Whole run", format_duration(cost.seconds), f"{cost.gpu_hours:,.0f} GPU-hours"))
    if cost.seconds and cost.price is not None:
        tiles.append(Tile("Costs", dollar_words(sum(cost.dollars.values()))))
    return tiles


def _models(report: PlanReport) -> list[Table]:
    """Of a stage in which they are not all trained whole."""
    if report.stage.is_plain:
        return []
    rows = [
        (
            model.name,
            f"{model.parameters:,}",
            f"{model.trained:,}",
            *(f"{size / 1e9:,.2f}" for size in (model.state.weights, model.state.gradients, model.state.optimizer)),
            f"{model.flops_per_token / 1e9:,.1f}",
        )
        for model in stage_summary(report)
    ]
    columns = ["model", "parameters", "trained", "weights, GB", "gradients, GB", "optimizer, GB", "GFLOP per token"]
    return [make_table("Models of the stage, all ranks together", columns, rows)]


def _pareto(report: PlanReport) -> list[Table]:
    if report.search is None:
        return []
    rows = [
        (
            candidate_words(candidate),
            f"{candidate.memory.peak / 1e9:,.1f}",
            format_seconds(candidate.time.seconds),
            format_count(candidate.time.tokens_per_second),
            f"{candidate.time.utilisation:.1%}",
        )
        for candidate in report.search.pareto
    ]
    columns = ["layout", "peak, GB", "step", "tokens/s", "MFU"]
    return [make_table("Layouts on the Pareto front", columns, rows)]


def _levers(report: PlanReport) -> Table:
    rows = [
        (lever.words, format_seconds(lever.seconds), saved_share(report, lever), lever.costs or "", lever.setting or "")
        for lever in report.levers
    ]
    columns: list[str | Column] = ["change", "saves", "of a step", Column("costs"), Column("settings")]
    return make_table("What would make it faster", columns, rows, note="Each change alone; savings do not add up.")


def _cost(report: PlanReport) -> Table:
    cost, rows = report.cost, []
    for phase in cost.phases:
        cells = [phase.time.name, format_count(phase.time.tokens, trim=True)]
        if phase.time.seconds is None or phase.seconds is None:
            rows.append([*cells, "–", "–", "–", "–"])
            continue
        hours = cost.world_size * phase.seconds / 3600
        times = [format_duration(phase.time.seconds), f"{phase.goodput:.1%}", format_duration(phase.seconds)]
        rows.append([*cells, *times, f"{hours:,.0f}"])
    columns = ["phase", "tokens", "undisturbed", "goodput", "with failures", "GPU-hours"]
    return make_table(
        "Phases", columns, rows, note="Goodput is the fraction of time left after failures, restarts and lost work."
    )


def _layout(report: PlanReport) -> Table:
    rows = [(axis, f"{size:,}", meaning) for axis, size, meaning in axis_rows(report.layout)]
    return make_table("Layout", ["axis", Column("ranks", number=True), Column("description")], rows)


def _nodes(report: PlanReport) -> list[Table]:
    if not report.nodes:
        return []
    better = advice(report.nodes)
    note = f"{nodes_title(report)}, and the seconds it takes on the link alone."
    return [
        make_table(
            "Between nodes", list(NODE_COLUMNS), node_rows(report), note=note + (f" Take {better}." if better else "")
        )
    ]


def _traffic(report: PlanReport) -> Table:
    rows = [
        (
            link.axis,
            f"{link.group.num_ranks:,}",
            f"{link.group.num_nodes:,}",
            _gigabytes(link.bytes),
            _gigabytes(link.sent.inside),
            _gigabytes(link.sent.outside),
            _gigabytes(link.into_node),
            format_seconds(link.seconds),
        )
        for link in sorted(report.step.links, key=lambda link: -link.seconds)
    ]
    columns = [
        "axis", "ranks of a group", "nodes of it", "GB of a rank", "sent in the node", "sent to others",
        "into each node", "time",
    ]  # fmt: skip
    return make_table(
        "Traffic", columns, rows,
        note=f"For a rank of pipeline stage {report.step.slowest}, the slowest, per step: bytes of its collectives, "
        "the part sent over NVLink and over the network, what all ranks of a node receive from other nodes, and the "
        "link time, overlapped or not.",
    )  # fmt: skip


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f}" if size else "–"
