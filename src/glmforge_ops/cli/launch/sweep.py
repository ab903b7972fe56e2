"""`glmforge sweep`: the points of a sweep together. `glmforge launch --sweep` makes one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge_ops.cli.launch.common import (
    DetachOption,
    JobsDirOption,
    JsonOption,
    go_on,
    print_lines,
    tell,
)

if TYPE_CHECKING:
    from glmforge_ops.jobs.sweep.sweep import Sweep

app = typer.Typer(no_args_is_help=True, help="Sweeps (many runs of one configuration): results, a page, again.")

_Name = Annotated[str, typer.Argument(help="A sweep.")]
_Sort = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="loss, best_loss, held_out, tokens_per_second, seconds, step, state, task, or a setting.",
        show_default="held_out if there is one, else loss",
    ),
]


@app.command("show")
def show(
    name: _Name,
    jobs_dir: JobsDirOption = None,
    sort: _Sort = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Show every point: the settings that differ, state, steps, losses, speed and time; the best first.

    Held-out: the mean of each held-out source's newest evaluation, bits per byte. Speed: the median, tokens/s. Time:
    that of training steps.

    Examples:

        glmforge sweep show lr

        glmforge sweep show lr --sort optim.lr

        glmforge sweep show lr --csv > lr.csv
    """
    from glmforge_ops.jobs.sweep import results

    sweep = _open(name, jobs_dir)
    settings = sweep.record.differing()
    rows = results.ranked(sweep.results(), sort, settings)
    if as_json:
        typer.echo(json.dumps([results.as_row(row) for row in rows], indent=1))
    elif as_csv:
        typer.echo(results.as_csv(rows, settings), nl=False)
    else:
        print_lines(results.lines_of(rows, settings))


@app.command("page")
def page(
    name: _Name,
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="Page to write.")],
    jobs_dir: JobsDirOption = None,
    sort: _Sort = None,
) -> None:
    """Write a page of all points: their losses, the result over each setting, and the table.

    Example:

        glmforge sweep page lr --out lr.html
    """
    from glmforge_ops.jobs.sweep.results import write_page

    sweep = _open(name, jobs_dir)
    record = sweep.record
    lead = f"{len(record.points):,} points of {record.config}, made {record.created:%Y-%m-%d %H:%M} UTC"
    write_page(name, lead, sweep.results(), record.differing(), sort, out)
    tell(f"{out}: {len(record.points):,} points")


@app.command("resubmit")
def resubmit(name: _Name, jobs_dir: JobsDirOption = None, detach: DetachOption = False) -> None:
    """Submit again what has not finished and is not queued or running; runs go on from their last checkpoint.

    Without a scheduler the points are run from here, as many at once as the sweep says.

    Example:

        glmforge sweep resubmit lr
    """
    go_on(_open(name, jobs_dir), "sweep", detach=detach)


@app.command("cancel")
def cancel(name: _Name, jobs_dir: JobsDirOption = None) -> None:
    """Cancel every point that waits or runs; what has been trained stays.

    Example:

        glmforge sweep cancel lr
    """
    cancelled = _open(name, jobs_dir).cancel()
    tell(f"{name}: {len(cancelled):,} points cancelled" if cancelled else f"{name}: no point waits or runs")


def _open(name: str, jobs_dir: Path | None) -> "Sweep":
    from glmforge_ops.jobs import submit
    from glmforge_ops.jobs.registry import directory_of, jobs_root
    from glmforge_ops.jobs.sweep.sweep import Sweep

    return Sweep(directory_of(jobs_root(jobs_dir), name, "sweep"), submit.scheduler_of)
