"""`glmforge plan --dry-run`: what each kind of rank holds, needs and communicates."""

import json
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from glmforge.cli.plan.layout import print_layout
from glmforge.cli.tables import gib, print_table, table

if TYPE_CHECKING:
    from glmforge.config.layout import Layout
    from glmforge.config.schema import RunConfig
    from glmforge.dryrun.run import DryRun


def take_dry_run(config: "RunConfig", **options: Any) -> "DryRun":
    """`options` are those of `dryrun.run.dry_run`."""
    from glmforge.dryrun.run import dry_run

    return dry_run(config, **options)


def show_dry_run(found: "DryRun", layout: "Layout", gpu_memory: float, console: Console, *, as_json: bool) -> None:
    """As tables below those of the layout, or as JSON. `gpu_memory` in GB."""
    from glmforge.dryrun.report import as_json as found_as_json

    if as_json:
        typer.echo(json.dumps(found_as_json(found), indent=2))
        return
    print_layout(found.config, layout, console, as_json=False)
    _print_dry_run(found, gpu_memory, console)


def _print_dry_run(found: "DryRun", gpu_memory: float, console: Console) -> None:
    from glmforge.dryrun import report

    held = table(*report.MEMORY_COLUMNS)
    for pp_rank, words, ranks, parameters, sizes, moment in report.memory_rows(found):
        held.add_row(str(pp_rank), words, f"{ranks:,}", f"{parameters / 1e6:,.1f} M", *map(gib, sizes), moment)
    peak = table(*report.PEAK_COLUMNS)
    for pp_rank, sizes in report.peak_rows(found):
        peak.add_row(str(pp_rank), *map(gib, sizes))
    traffic = table("pp", *report.traffic_axes(found))
    for pp_rank, cells in report.traffic_rows(found):
        traffic.add_row(str(pp_rank), *(f"{calls:,} {gib(size)}" for calls, size in cells))
    print_table("Memory and peak of each kind of rank (GiB)", held, console)
    print_table("Memory at the peak (GiB)", peak, console)
    if report.traffic_axes(found):
        print_table("Communication of one step: calls and GiB", traffic, console)
    share = found.peak / (gpu_memory * 1e9)
    console.print(
        f"The largest peak is {gib(found.peak)} GiB, {share:.0%} of a GPU of {gpu_memory:g} GB. "
        f"The dry run took {found.seconds:.0f} s.",
        highlight=False,
    )
    for note in report.notes(found):
        console.print(f"- {note}", highlight=False)
