"""`glmforge plan`: the phases of a run and how it lies on the ranks."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table
from glmforge.errors import ConfigError

if TYPE_CHECKING:
    from glmforge.config.layout import Layout
    from glmforge.config.schema import RunConfig
    from glmforge.plan.machine.machine import Machine


def print_phases(config: "RunConfig", console: Console) -> None:
    """Their sizes and settings."""
    from glmforge.observe.units import format_count
    from glmforge.report.schedule import NUM_SIZES, TOKENS_OF_STEPS, phase_columns, phase_rows, plan_schedule

    planned = plan_schedule(config, look_at_data=False)
    columns, rows = phase_columns(), list(phase_rows(planned))
    sizes, settings = table(*columns[:NUM_SIZES]), table(columns[0], *columns[NUM_SIZES:])
    for row in rows:
        sizes.add_row(*row[:NUM_SIZES])
        settings.add_row(row[0], *row[NUM_SIZES:])
    print_table(f"{format_count(planned.tokens)} tokens in {config.num_steps:,} steps", sizes, console)
    if planned.lr_by_steps:
        console.print(TOKENS_OF_STEPS, highlight=False, soft_wrap=True)
    print_table("Settings of the phases", settings, console)


def draw_schedule(config: "RunConfig", out: Path, console: Console) -> None:
    """Everything that changes over the run, as what the suffix of `out` says."""
    from glmforge.report.schedule_page import write_schedule

    console.print(f"{write_schedule(config, out)}", highlight=False, soft_wrap=True)


def checked_layout(
    run: "RunConfig", world_size: int, phase: str | None, machine: "Machine | None", errors: Console
) -> "Layout":
    """The layout of a run, with a warning for what makes no sense and for phases that it does not serve.

    Raises `ConfigError` for one that cannot work, with the best that can.
    """
    from glmforge.config.layout import resolve_layout
    from glmforge.plan.layout import phases_not_served, select_phase
    from glmforge.plan.search.propose import with_proposal
    from glmforge.plan.search.warnings import layout_warnings

    try:
        layout = resolve_layout(run, world_size, phase=phase)
    except ConfigError as error:
        raise with_proposal(error, run, world_size, machine, phase) from None
    for warning in layout_warnings(select_phase(run, phase), layout, machine):
        errors.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    if phase is not None:
        for reason in phases_not_served(run, world_size, phase):
            errors.print(reason, highlight=False, soft_wrap=True)
    return layout


def print_layout(config: "RunConfig", layout: "Layout", console: Console, *, as_json: bool) -> None:
    """Axes, groups, pipeline, micro-batches of the first phase."""
    from glmforge.observe.units import counted
    from glmforge.plan.layout import axis_rows, batch_words, group_rows, layout_as_json, stages_of_pp_rank

    if as_json:
        typer.echo(json.dumps(layout_as_json(config, layout), indent=2))
        return
    axes = table("axis", "ranks", "")
    for axis, size, meaning in axis_rows(layout):
        axes.add_row(axis, f"{size:,}", meaning)
    groups = table("ranks that", "number")
    for words, number in group_rows(layout):
        groups.add_row(words, f"{number:,}")
    stages = table("pp", "holds")
    for pp_rank in range(layout.pp):
        stages.add_row(str(pp_rank), "; ".join(stage.words for stage in stages_of_pp_rank(config, layout, pp_rank)))
    print_table(f"{counted(layout.world_size, 'rank')} on axes", axes, console)
    print_table("What ranks share", groups, console)
    print_table("Pipeline", stages, console)
    console.print(batch_words(layout, config.phases[0]), highlight=False)
