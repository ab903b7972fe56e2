"""`glmforge plan --sheet`: a budget of users' guides, and what it implies for a run."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.config.schema import RunConfig
    from glmforge.plan.cost.sheet import Sheet, SheetRow


def show_sheet(name: str, config: "RunConfig", network: str, console: Console, *, as_json: bool) -> None:
    """The sheet to the dollar, and what its days imply for the tokens of `config`."""
    from glmforge.plan.cost.phase_time import predicted_phases
    from glmforge.plan.cost.sheet import find_sheet, sheet_rows
    from glmforge.plan.machine.machine import find_machine
    from glmforge.plan.time.overheads import INTERVAL

    sheet = find_sheet(name)
    phases = predicted_phases(config, sheet.num_gpus, find_machine(sheet.gpu, network))
    problems = [f"phase {phase.name}: {phase.problem}" for phase in phases if phase.problem]
    rows = sheet_rows(config, sheet, None if problems else sum(phase.seconds or 0.0 for phase in phases))
    if as_json:
        bill = asdict(sheet) | {"gpu_hours": sheet.gpu_hours, "dollars": sheet.dollars}
        bill["other_dollars"] = sheet.other_dollars
        typer.echo(json.dumps({"sheet": bill, "rows": [asdict(row) for row in rows], "problems": problems}, indent=2))
        return
    _print_bill(sheet, console)
    _print_rows(config, rows, console)
    if not problems:
        console.print(f"Our prediction is right within a factor of {INTERVAL:.2f} in four of five cases.")
    for phase in phases:
        words = f"is {phase.provenance}" if phase.problem is None else f"is missing: {phase.problem}"
        console.print(f"- our prediction of phase {phase.name} {words}", highlight=False)


def _print_bill(sheet: "Sheet", console: Console) -> None:
    bill = table("", "GPU-hours", "dollars")
    days = f"{sheet.num_gpus:,} {sheet.gpu} x {sheet.days:g} days at ${sheet.dollars_per_gpu_hour:.2f}"
    bill.add_row(days, f"{sheet.gpu_hours:,.0f}", f"{sheet.gpu_dollars:,.0f}")
    for number, dollars in enumerate(sheet.lump_sums, start=1):
        bill.add_row(f"lump sum {number}", "", f"{dollars:,.0f}")
    bill.add_row("all", "", f"{sheet.dollars:,.0f}")
    print_table(f"The sheet '{sheet.name}'", bill, console)
    if sheet.other_price is not None:
        console.print(
            f"At ${sheet.other_price:.2f} the same hours are ${sheet.other_dollars:,.0f}: {sheet.other_reason}.",
            highlight=False,
        )


def _print_rows(config: "RunConfig", rows: "list[SheetRow]", console: Console) -> None:
    implied = table("", "MFU", "days", "GPU-hours", "dollars for GPUs")
    for row in rows:
        cells = f"{row.utilisation:.1%}", f"{row.days:,.1f}", f"{row.gpu_hours:,.0f}", f"{row.dollars:,.0f}"
        implied.add_row(row.words, *cells)
    print_table(f"What its days imply for {config.name}: {config.num_tokens / 1e12:.2f}T tokens", implied, console)
    console.print("MFU is relative to the dense bf16 peak. These rows assume no failures; --cost includes them.")
