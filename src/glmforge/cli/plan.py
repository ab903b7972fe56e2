"""`glmforge plan`: what a run will do, and what its layout is and takes, before anything is launched."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from glmforge.config.layout import Layout
    from glmforge.config.schema import RunConfig
    from glmforge.dryrun.run import DryRun

_GIB = 2**30


def plan(
    config: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a packaged run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings to change: key.sub=value, any number of them.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, help="Number of processes (GPUs); 1 if not given.")
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Draw the whole schedule: a page (.html) or a picture (.png, .svg)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Take one step of the real sharded model on tensors without memory.")
    ] = False,
    phase: Annotated[
        str | None,
        typer.Option(help="The phase to plan, the only one the layout has to work for. Default: the first, and all."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Of this rank alone: the dry run, the roofline.")] = None,
    imbalance: Annotated[
        float, typer.Option(help="Rows that an expert-parallel rank gets, as a multiple of an even share.")
    ] = 1.0,
    roofline: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="Of each operation of a rank's step: FLOPs, bytes, and the least and the expected time on this GPU.",
        ),
    ] = None,
    gpu_memory: Annotated[float, typer.Option(help="Memory of a GPU in GB, 10^9 bytes.")] = 80.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say what a run will do and what its layout takes, before anything is launched.

    Prints the phases of CONFIG and how it lies on that many GPUs; with --dry-run, what each kind of rank holds, needs
    and communicates; with --schedule, draws learning rate, batches, mixture and all else over tokens. Neither data nor
    a GPU is needed; where token shards exist, the schedule shows what is really drawn from them.

    With --roofline, lists what a rank's step computes, operation by operation, with the least time that a GPU of that
    name (as the driver gives it, such as "NVIDIA H200") can take for it, and the time expected of eager torch, of
    compiled layers and of Triton's kernels. A GPU that is not known gets no times.

    Examples:

        glmforge plan configs/pretrain_glm45_355b.yaml --schedule schedule.html

        glmforge plan configs/pretrain_glm45_355b_guide.yaml --world-size 8192

        glmforge plan configs/pretrain_glm45_355b_guide.yaml parallel.tp=4 --world-size 8192 --rank 0 --dry-run

        glmforge plan configs/small_1b.yaml --roofline "NVIDIA H200"
    """
    from glmforge.config import load_config
    from glmforge.config.layout import resolve_layout
    from glmforge.plan.layout import phases_not_served, select_phase

    loaded = load_config(config, overrides or [])
    console = Console()
    if not as_json and not dry_run and roofline is None:
        _print_phases(loaded, console)
    if schedule is not None:
        from glmforge.report.schedule_page import write_schedule

        written = write_schedule(loaded, schedule)
        Console(stderr=as_json).print(f"{written}", highlight=False, soft_wrap=True)
        if world_size is None and not dry_run:
            return
    world_size = world_size or 1
    whole, loaded = loaded, select_phase(loaded, phase)
    layout = resolve_layout(whole, world_size, phase=phase)
    if phase is not None:
        for reason in phases_not_served(whole, world_size, phase):
            Console(stderr=True).print(reason, highlight=False, soft_wrap=True)
    if roofline is not None:
        from glmforge.cli.roofline import show_roofline

        show_roofline(loaded, layout, (rank or 0) // layout.stage_ranks, roofline, as_json=as_json)
        return
    if not dry_run:
        _print_layout(loaded, layout, console, as_json=as_json)
        return
    errors = Console(stderr=True)
    _take_dry_run(
        loaded,
        layout,
        console,
        gpu_memory,
        as_json=as_json,
        world_size=world_size,
        rank=rank,
        imbalance=imbalance,
        progress=lambda line: errors.print(line, highlight=False),
    )


def _take_dry_run(
    config: "RunConfig", layout: "Layout", console: Console, gpu_memory: float, *, as_json: bool, **options: Any
) -> None:
    """`options` are those of `dryrun.run.dry_run`."""
    from glmforge.dryrun.report import as_json as found_as_json
    from glmforge.dryrun.run import dry_run

    found = dry_run(config, **options)
    if as_json:
        typer.echo(json.dumps(found_as_json(found), indent=2))
        return
    _print_layout(config, layout, console, as_json=False)
    _print_dry_run(found, gpu_memory, console)


def _print_phases(config: "RunConfig", console: Console) -> None:
    from glmforge.observe.units import format_count
    from glmforge.report.schedule import NUM_SIZES, phase_columns, phase_rows, plan_schedule

    planned = plan_schedule(config, look_at_data=False)
    columns, rows = phase_columns(), list(phase_rows(planned))
    sizes, settings = _table(*columns[:NUM_SIZES]), _table(columns[0], *columns[NUM_SIZES:])
    for row in rows:
        sizes.add_row(*row[:NUM_SIZES])
        settings.add_row(row[0], *row[NUM_SIZES:])
    _print_table(f"{format_count(planned.tokens)} tokens in {config.num_steps:,} steps", sizes, console)
    _print_table("Settings of the phases", settings, console)


def _print_layout(config: "RunConfig", layout: "Layout", console: Console, *, as_json: bool) -> None:
    from glmforge.observe.units import counted
    from glmforge.plan.layout import axis_rows, batch_words, group_rows, layout_as_json, stages_of_pp_rank

    if as_json:
        typer.echo(json.dumps(layout_as_json(config, layout), indent=2))
        return
    axes = _table("axis", "ranks", "")
    for axis, size, meaning in axis_rows(layout):
        axes.add_row(axis, f"{size:,}", meaning)
    groups = _table("ranks that", "number")
    for words, number in group_rows(layout):
        groups.add_row(words, f"{number:,}")
    stages = _table("pp", "holds")
    for pp_rank in range(layout.pp):
        stages.add_row(str(pp_rank), "; ".join(stage.words for stage in stages_of_pp_rank(config, layout, pp_rank)))
    _print_table(f"{counted(layout.world_size, 'rank')} on axes", axes, console)
    _print_table("Who shares what", groups, console)
    _print_table("Pipeline", stages, console)
    console.print(batch_words(layout, config.phases[0]), highlight=False)


def _print_dry_run(found: "DryRun", gpu_memory: float, console: Console) -> None:
    from glmforge.dryrun import report

    held = _table(*report.MEMORY_COLUMNS)
    for pp_rank, words, ranks, parameters, sizes, moment in report.memory_rows(found):
        held.add_row(str(pp_rank), words, f"{ranks:,}", f"{parameters / 1e6:,.1f} M", *map(_gib, sizes), moment)
    peak = _table(*report.PEAK_COLUMNS)
    for pp_rank, sizes in report.peak_rows(found):
        peak.add_row(str(pp_rank), *map(_gib, sizes))
    traffic = _table("pp", *report.traffic_axes(found))
    for pp_rank, cells in report.traffic_rows(found):
        traffic.add_row(str(pp_rank), *(f"{calls:,} {_gib(size)}" for calls, size in cells))
    _print_table("What each kind of rank holds, and needs at most (GiB)", held, console)
    _print_table("What lives at the peak (GiB)", peak, console)
    if report.traffic_axes(found):
        _print_table("Communication of one step: calls and GiB", traffic, console)
    share = found.peak / (gpu_memory * 1e9)
    console.print(
        f"The largest peak is {_gib(found.peak)} GiB, {share:.0%} of a GPU of {gpu_memory:g} GB. "
        f"The dry run took {found.seconds:.0f} s.",
        highlight=False,
    )
    for note in report.notes(found):
        console.print(f"- {note}", highlight=False)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        in_words = name in ("", "axis", "ranks that", "holds", "phase")
        table.add_column(name, justify="left" if in_words else "right", no_wrap=not in_words, overflow="fold")
    return table


def _print_table(title: str, table: Table, console: Console) -> None:
    console.print(f"[italic]{title}[/italic]", highlight=False)
    console.print(table)


def _gib(size: int) -> str:
    return f"{size / _GIB:,.2f}"
