"""`glmforge plan --gpu`: does it fit, how fast, how expensive, what takes the time, what would change it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glmforge.cli.plan.stage import print_models
from glmforge.cli.tables import print_table, table
from glmforge.errors import ConfigError

if TYPE_CHECKING:
    from glmforge.config.schema import RunConfig
    from glmforge.dryrun.run import DryRun
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.report import PlanReport
    from glmforge.plan.stages.stage import TrainingStage

_BAR = 24


def chosen_machine(
    gpu: str | None, network: str, nodes_of: int, calibrate: Path | None, need_it: Mapping[str, object]
) -> "Machine | None":
    """What the options name; None without --gpu and --calibrate. Raises `ConfigError` for what is not known, or if an
    option of `need_it` was given without --gpu."""
    from glmforge.plan.machine.calibration import calibrated_machine
    from glmforge.plan.machine.machine import find_machine

    if calibrate is not None:
        return calibrated_machine(calibrate, gpu, network, nodes_of)
    if gpu is not None:
        return find_machine(gpu, network, nodes_of)
    for option, value in need_it.items():
        if value not in (None, False):
            raise ConfigError(f"{option}: needs the GPU; add --gpu, such as --gpu h100-80gb")
    return None


def check_output_options(page: Path | None, compare: str | None, *, search: bool, roofline: str | None) -> None:
    """Raises `ConfigError` for views that cannot be had together."""
    if roofline is not None and (page is not None or compare is not None):
        raise ConfigError("--roofline: cannot be combined with --page or --compare; remove one")
    if search and compare is not None:
        raise ConfigError("--search: finds one layout; compare its output file in a second call")


def plan_report(
    phase: str | None,
    world_size: int,
    machine: "Machine",
    stage: "TrainingStage",
    price: str | None,
    imbalance: float,
    dry_run: "Callable[[RunConfig], DryRun] | None",
    run: "RunConfig",
) -> "PlanReport":
    """A plan of `run` with the memory of a dry run, if one is to be taken."""
    from glmforge.config.layout import resolve_layout
    from glmforge.plan.cost.settings import read_settings
    from glmforge.plan.layout import select_phase
    from glmforge.plan.report import make_report

    config, layout = select_phase(run, phase), resolve_layout(run, world_size, phase=phase)
    memory = None
    if dry_run is not None:
        from glmforge.dryrun.report import planned_memory

        memory = planned_memory(dry_run(config), stage)
    return make_report(
        run,
        config,
        layout,
        machine,
        stage=stage,
        settings=read_settings(price),
        memory=memory,
        imbalance=imbalance,
    )


def show_report(report: "PlanReport", console: Console, *, page: Path | None, as_json: bool) -> None:
    """In the terminal or as JSON, and on a page where `page` names one."""
    from glmforge.plan.report import as_json as report_as_json
    from glmforge.plan.report import stage_summary

    if as_json:
        typer.echo(json.dumps(report_as_json(report), indent=2))
    else:
        _print_answers(report, console)
        if not report.stage.is_plain:
            print_models(report.stage, stage_summary(report), console)
        _print_parts(report, console)
        _print_nodes(report, console)
        _print_levers(report, console)
    if page is not None:
        from glmforge.report.plan_page import write_plan

        written = write_plan(report, page)
        Console(stderr=as_json).print(f"{written}", highlight=False, soft_wrap=True)


def _print_answers(report: "PlanReport", console: Console) -> None:
    from glmforge.plan.answers import answers, layout_words, machine_words, subject_words

    console.print(Text(report.run.name, "bold"))
    console.print(Text(f"{subject_words(report)} on {machine_words(report)}"))
    console.print(Text(layout_words(report.layout), "dim"))
    console.print()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for answer in answers(report):
        grid.add_row(Text(answer.question, "bold"), Text(answer.words))
        for detail in answer.details:
            grid.add_row("", Text(detail, "dim"))
    console.print(grid)
    console.print()


def _print_parts(report: "PlanReport", console: Console) -> None:
    from glmforge.observe.units import format_seconds
    from glmforge.plan.answers import parts_by_size

    rows, step = table("part", "time", "share", "", "from"), report.step
    for name, seconds in parts_by_size(step.parts):
        share = seconds / step.seconds
        rows.add_row(name, format_seconds(seconds), f"{share:.1%}", "█" * round(_BAR * share), step.provenance[name])
    print_table("A step of the slowest rank", rows, console)


def _print_nodes(report: "PlanReport", console: Console) -> None:
    from glmforge.plan.across_nodes import advice
    from glmforge.plan.answers import NODE_COLUMNS, node_rows, nodes_title

    if not report.nodes:
        return
    rows = table(*NODE_COLUMNS, in_words=("weights", "along", "fits"))
    for row in node_rows(report):
        rows.add_row(*row)
    print_table(nodes_title(report), rows, console)
    if (better := advice(report.nodes)) is not None:
        console.print(f"Take {better}", highlight=False, soft_wrap=True)
        console.print()


def _print_levers(report: "PlanReport", console: Console) -> None:
    from glmforge.observe.units import format_seconds
    from glmforge.plan.answers import saved_share

    if not report.levers:
        return
    console.print("[italic]What would make it faster, each change alone[/italic]")
    console.print()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for lever in report.levers:
        words = f"{lever.words}, at the cost of {lever.costs}" if lever.costs else lever.words
        grid.add_row(saved_share(report, lever), format_seconds(lever.seconds), Text(words))
        if lever.setting:
            grid.add_row("", "", Text(lever.setting, "dim"))
    console.print(grid)
