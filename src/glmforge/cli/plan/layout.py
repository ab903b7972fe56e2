"""`glmforge plan`: the phases of a run and how it lies on the ranks."""

import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.plan.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.config.layout import Layout
    from glmforge.config.schema import RunConfig


def print_phases(config: "RunConfig", console: Console) -> None:
    """Their sizes and settings."""
    from glmforge.observe.units import format_count
    from glmforge.report.schedule import NUM_SIZES, phase_columns, phase_rows, plan_schedule

    planned = plan_schedule(config, look_at_data=False)
    columns, rows = phase_columns(), list(phase_rows(planned))
    sizes, settings = table(*columns[:NUM_SIZES]), table(columns[0], *columns[NUM_SIZES:])
    for row in rows:
        sizes.add_row(*row[:NUM_SIZES])
        settings.add_row(row[0], *row[NUM_SIZES:])
    print_table(f"{format_count(planned.tokens)} tokens in {config.num_steps:,} steps", sizes, console)
    print_table("Settings of the phases", settings, console)


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
    print_table("Who shares what", groups, console)
    print_table("Pipeline", stages, console)
    console.print(batch_words(layout, config.phases[0]), highlight=False)
