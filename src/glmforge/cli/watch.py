"""`glmforge watch`, `runs`, `timeline` and `compare`: runs on a terminal and as pages."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer


class Column(StrEnum):
    name = "name"
    stage = "stage"
    state = "state"
    step = "step"
    tokens = "tokens"
    loss = "loss"
    best = "best"
    speed = "speed"
    started = "started"
    age = "age"


_FIELDS = {"speed": "tokens_per_second", "age": "age_s"}
_OMITTED_FIRST = (8, 4, 7, 6, 1, 9)
"""Columns of `runs`, where a terminal is narrow: started, tokens, speed, best, stage, age."""
_WIDE = 400
_DirOption = Annotated[Path | None, typer.Option(help="Where jobs lie.", show_default="$GLMFORGE_JOBS, or ./jobs")]


def watch(
    run: Annotated[str, typer.Argument(metavar="RUN|JOB", help="A run's directory, or the name of a job.")],
    once: Annotated[bool, typer.Option("--once", help="Show what is known and end.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Go on when it has ended: it may be resumed.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    jobs_dir: _DirOption = None,
) -> None:
    """Watch a run: progress and time left, loss, speed, balance, evaluations, checkpoints, events, state.

    Reads the run's files, from any machine that sees them; waits for a run that has not started. Without a terminal it
    prints a line for each record. Ends with the run (a job: with its supervisor), with exit status 1 if it failed.

    Examples:

        glmforge watch runs/demo

        glmforge watch air --once
    """
    from rich.console import Console

    from glmforge.cli.interruptible import interruptible
    from glmforge.doctor.run_state import State
    from glmforge.doctor.watch import watch as watch_run
    from glmforge.errors import GlmforgeError
    from glmforge.files import shown

    root, goes_on = _run_or_job(run, jobs_dir)
    if once and not root.is_dir():
        raise GlmforgeError(f"{shown(run)}: no such run or job; without --once it is waited for")
    with interruptible("the run goes on"):
        state = watch_run(root, Console(), once=once, keep=keep, every_s=every, goes_on=goes_on)
    raise typer.Exit(1 if state is State.FAILED and not once else 0)


def runs(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR]...", help="Runs in and below these.", show_default="runs")
    ] = None,
    sort: Annotated[Column, typer.Option(help="By this column.")] = Column.name,
    reverse: Annotated[bool, typer.Option("--reverse", help="The largest first.")] = False,
    state: Annotated[list[str] | None, typer.Option(help="Only these, such as running, silent, failed.")] = None,
    stage: Annotated[list[str] | None, typer.Option(help="Only these, such as pretrain, sft, rl.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="Only these; 'lr-*' is a pattern.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs: stage, state, steps, tokens, last loss, best evaluation, speed, start, time since the last change.

    Reads the ends of the files only. A damaged run is listed, with the reason below the table.

    Examples:

        glmforge runs

        glmforge runs /data/runs --state failed --sort age
    """
    from rich.console import Console
    from rich.markup import escape

    from glmforge.cli.tables import print_table, table
    from glmforge.cli.terminal import as_shown
    from glmforge.doctor.run_state import State
    from glmforge.doctor.runs import RunRow, as_dict, find_runs, ordered, read_row, select
    from glmforge.files import escaped
    from glmforge.observe.units import format_count, format_duration

    known = [*State, "damaged"]
    for one in state or ():
        if one not in known:
            raise typer.BadParameter(f"unknown state '{one}'; choose one of {', '.join(known)}", param_hint="--state")
    found = [read_row(path) for path in find_runs(directories or [Path("runs")])]
    rows = select(found, states=state or (), stages=stage or (), names=name or ())
    rows = ordered(rows, _FIELDS.get(sort, sort), reverse=reverse)
    if as_json:
        typer.echo(json.dumps([as_dict(row) for row in rows], indent=1))
        return

    def cells(row: RunRow) -> list[str]:
        step = "-" if row.step is None else f"{row.step:,}" + (f"/{row.total:,}" if row.total else "")
        started = "-" if row.started is None else datetime.fromtimestamp(row.started, UTC).strftime("%Y-%m-%d %H:%M")
        numbers = [
            "-" if value is None else write(value)
            for value, write in (
                (row.tokens, format_count),
                (row.loss if row.reward is None else row.reward, "{:.4f}".format),
                (row.best, "{:.4f}".format),
                (row.tokens_per_second, format_count),
            )
        ]
        age = "-" if row.age_s is None else format_duration(row.age_s)
        return [row.name, row.stage or "-", row.state, step, *numbers, started, age]

    words = ("name", "stage", "state")
    head = (*words, "step", "tokens", "loss/reward", "best", "tokens/s", "started (UTC)", "age")
    lines = [[escaped(cell) for cell in cells(row)] for row in rows]
    console = Console()
    kept = _that_fit([list(head), *lines], console.width if console.is_terminal else None)
    shown = table(*(head[place] for place in kept), in_words=words)
    for line in lines:
        shown.add_row(*(escape(line[place]) for place in kept))
    if rows:
        print_table("", shown, console if console.is_terminal else Console(width=_WIDE))
    for row in rows:
        if row.why and row.state in ("damaged", "failed"):
            typer.echo(as_shown(f"{row.path}: {row.state}: {row.why}"))
    typer.echo(f"{len(rows):,} of {len(found):,} runs")


def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run directories, 2 to 16.")],
    output: Annotated[Path | None, typer.Option(help="Write a page (.html) with curves.", show_default=False)] = None,
) -> None:
    """Compare runs: final numbers, each with its difference to the first run's, and settings that differ.

    The page has their curves on shared axes, over steps, tokens and training time, for runs of different length too.

    Examples:

        glmforge compare runs/base runs/lower_lr

        glmforge compare runs/lr-* --output compare.html
    """
    from rich.console import Console
    from rich.markup import escape

    from glmforge.cli.tables import print_table, table
    from glmforge.doctor.compare import differences, figures, read_runs, scores
    from glmforge.report.comparison_page import Curves, write_comparison
    from glmforge.report.page import Column as PageColumn
    from glmforge.report.page import Summary, Tile, make_table

    found = read_runs(directories)
    names = [run.name for run in found]
    numbers = [[one.label, *one.cells()] for one in figures(found)]
    changes = differences(found)
    console = Console()
    rows = table("figure", *names)
    for row in numbers:
        rows.add_row(*map(escape, row))
    print_table("", rows, console)
    if changes:
        settings = table("setting", *names, in_words=names)
        for key, values in changes:
            settings.add_row(escape(key), *map(escape, values))
        print_table("Settings, versions and machines that differ", settings, console)
    if output is not None:
        tables = [
            make_table("Final numbers", ["Figure", *names], numbers, note="With the difference to the first run."),
            make_table(
                "What differs",
                [PageColumn("Setting"), *map(PageColumn, names)],
                [[key, *values] for key, values in changes],
                note="Configuration with its defaults, versions, code and machine; all else is the same.",
            ),
        ]
        measured = ("bits_per_byte", "held_out_pair_accuracy", "benchmark_score")
        curves = [
            Curves(run.name, run.log.metrics, {name: each for name in measured if (each := scores(run.log, name))})
            for run in found
        ]
        tiles = [Tile("Runs", str(len(found))), Tile("Settings that differ", str(len(changes)))]
        summary = Summary(f"{len(found)} runs", f"{names[0]} is what the others are compared with", tiles, tables)
        typer.echo(f"{write_comparison(summary, curves, output)}")


def timeline(
    run: Annotated[str, typer.Argument(metavar="RUN|JOB", help="A run's directory, or the name of a job.")],
    output: Annotated[
        Path | None, typer.Option(help="A page (.html), or a trace (.json) for ui.perfetto.dev.", show_default=False)
    ] = None,
    jobs_dir: _DirOption = None,
) -> None:
    """Draw what a run's processes did and when: starts, training, rollouts, evaluations, saves, waits, lost time.

    Without --output it prints what the time adds up to. Of a run that belongs to a job also each rank's process.

    Examples:

        glmforge timeline runs/demo --output timeline.html

        glmforge timeline air --output timeline.json
    """
    from glmforge.observe.units import format_duration
    from glmforge.report.timeline import TRAINING, timeline_of
    from glmforge.report.timeline_page import sums, write_timeline

    root, _ = _run_or_job(run, jobs_dir)
    found = timeline_of(root)
    if output is not None:
        typer.echo(f"{write_timeline(found, output)}")
        return
    by_kind = sums(bar for bar in found.bars if bar.lane == TRAINING)
    width, total = max(map(len, by_kind), default=0), sum(by_kind.values()) or 1.0
    for kind, seconds in by_kind.items():
        typer.echo(f"{kind:{width}}  {format_duration(seconds):>8}  {seconds / total:6.1%}")


def _that_fit(lines: list[list[str]], width: int | None) -> list[int]:
    """The columns that a terminal has room for; the least needed ones are omitted first."""
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    kept = list(range(len(widths)))
    for place in _OMITTED_FIRST:
        if width is not None and sum(widths[one] for one in kept) > width:
            kept.remove(place)
    return kept


def _run_or_job(given: str, jobs_dir: Path | None) -> tuple[Path, Callable[[], bool]]:
    """A run's directory, and whether the job goes on that it belongs to; a directory of this name comes first."""
    if Path(given).is_dir() or "/" in given:
        return Path(given), lambda: False
    found = import_module("glmforge_ops.cli.commands").run_of_job(given, jobs_dir)
    return found or (Path(given), lambda: False)
