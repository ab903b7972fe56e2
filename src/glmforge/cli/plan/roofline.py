"""`glmforge plan --roofline`: the operations of a rank's step as a table, or as JSON."""

import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.config.layout import Layout
    from glmforge.config.schema import RunConfig
    from glmforge.plan.machine.hardware import Accelerator
    from glmforge.plan.stages.stage import TrainingStage
    from glmforge.plan.time.ledger import Cost, Ledger


def show_roofline(
    config: "RunConfig", layout: "Layout", pp_rank: int, gpu: str, stage: "TrainingStage", *, as_json: bool
) -> None:
    """Print the ledger of a step of a rank of `pp_rank`, with times if `gpu` is a known device's name."""
    from glmforge.plan.machine.hardware import ACCELERATORS, accelerator_named
    from glmforge.plan.time.ledger import as_json as ledger_as_json
    from glmforge.plan.time.ledger import make_ledger

    accelerator = accelerator_named(gpu)
    ledger = make_ledger(config, layout, accelerator, pp_rank, stage)
    if accelerator is None:
        known = ", ".join(row.name for row in ACCELERATORS)
        Console(stderr=True).print(
            f"--roofline: unknown GPU '{gpu}', so no times can be computed; known are {known}",
            highlight=False,
            soft_wrap=True,
        )
    if as_json:
        typer.echo(json.dumps(ledger_as_json(ledger), indent=2))
        return
    _print(ledger, config.phases[0].name, layout.pp, pp_rank)


def _print(ledger: "Ledger", phase: str, num_stages: int, pp_rank: int) -> None:
    console, device = Console(), ledger.accelerator
    where = f", pipeline rank {pp_rank}" if num_stages > 1 else ""
    title = f"A step of phase {phase} on one rank{where}" + (f", times in ms on an {device.name}" if device else "")
    columns = ["operation", "TFLOP", "GB", *(["limit", "eager", "compiled", "triton"] if device else [])]
    rows = table(*columns, in_words=("operation",))
    for row in ledger.rows:
        rows.add_row(row.name, *_cells(row.total, device))
    rows.add_section()
    rows.add_row("all", *_cells(ledger.total, device))
    print_table(title, rows, console)
    if device:
        rates = (
            f"{name} {ledger.tokens / seconds:,.0f} tokens/s, MFU {ledger.utilisation(seconds):.0%}"
            for name, seconds in ledger.total.expected.items()
        )
        console.print(f"Expected, not measured: {'; '.join(rates)}.", highlight=False)
    for traffic in ledger.traffic:
        seconds = traffic.seconds(device) if device else None
        link = "" if seconds is None else f", at least {_short(seconds * 1e3)} ms"
        place = "inside a node" if traffic.ranks_per_node == traffic.num_ranks else "between nodes"
        console.print(f"- {traffic.axis}: {traffic.bytes / 1e9:,.2f} GB {place}{link}", highlight=False)


def _cells(cost: "Cost", device: "Accelerator | None") -> list[str]:
    cells = [_short(cost.flops / 1e12) if cost.flops else "", _short(cost.bytes / 1e9)]
    if device is None:
        return cells
    return cells + [_short(seconds * 1e3) for seconds in (cost.limit, *cost.expected.values())]


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
