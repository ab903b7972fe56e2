"""`glmforge sweep`: the points of a sweep together. `glmforge launch --sweep` makes one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge_ops.cli.launch.together import DetachOption, JobsDirOption, go_on_detached, tell, tell_how_many_finished

if TYPE_CHECKING:
    from glmforge.config.launch import LaunchConfig
    from glmforge_ops.jobs.sweep.work import Sweep

app = typer.Typer(no_args_is_help=True, help="Sweeps, that is many runs of one configuration: results, a page, again.")

_Name = Annotated[str, typer.Argument(help="A sweep.")]
_Sort = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="loss, best_loss, held_out, tokens_per_second, seconds, step, state, task, or a setting.",
        show_default="held_out if there is one, else loss",
    ),
]


def launch_sweep(
    words: Sequence[str],
    launch: "LaunchConfig",
    *,
    axes: Sequence[str],
    file: Path | None,
    at_once: int | None,
    name: str | None,
    jobs_dir: Path | None,
    template: Path | None,
    gpu: str | None,
    plan: bool,
    check: bool,
    dry_run: bool,
    detach: bool,
    as_json: bool,
) -> None:
    """What `glmforge launch CONFIG --sweep` does; `words` are CONFIG and the settings that all points share."""
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.jobs.submit.hand_over import scheduler_of
    from glmforge_ops.jobs.submit.new_job import jobs_root
    from glmforge_ops.jobs.submit.preflight import check_nodes
    from glmforge_ops.jobs.sweep.make import make_sweep
    from glmforge_ops.jobs.sweep.points import expand
    from glmforge_ops.jobs.sweep.work import Sweep

    points = expand(axes, file)
    with work_progress("checking points", first_line=200) as show:
        new = make_sweep(
            name,
            words[0],
            words[1:],
            points,
            launch,
            jobs_root(jobs_dir),
            at_once,
            template,
            lambda done: show(done, f"{done:,} of {len(points):,}"),
        )
    if dry_run:
        typer.echo(new.script if new.script is not None else new.jobs[0].script, nl=False)
        for point, job in zip(points, new.jobs, strict=True):
            typer.echo(f"{job.directory.name}: {point}", err=True)
        typer.echo(f"{new.directory.root}: is where it would be; nothing was submitted", err=True)
        return
    new.check(scheduler_of)
    if plan:
        tell(f"plan: {new.check_fit(gpu)}")
    if check and (told := check_nodes(launch)) is not None:
        tell(f"check: {told}")
    new.write()
    sweep = Sweep(new.directory, scheduler_of)
    tell(f"{sweep.record.name}: {len(points):,} points in {new.directory.root}-*")
    _start(sweep, failed_only=False, detach=detach, as_json=as_json)


@app.command("show")
def show(
    name: _Name,
    jobs_dir: JobsDirOption = None,
    sort: _Sort = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
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
    from glmforge.cli.terminal import as_shown
    from glmforge_ops.jobs.sweep.results import as_csv as csv_of
    from glmforge_ops.jobs.sweep.results import as_row, default_measure, ranked, sort_key
    from glmforge_ops.jobs.sweep.words import lines_of

    sweep = _open(name, jobs_dir)
    results = sweep.results()
    settings = sweep.record.differing()
    rows = ranked(results, sort_key(results, sort or default_measure(results), settings))
    if as_json:
        typer.echo(json.dumps([as_row(row) for row in rows], indent=1))
    elif as_csv:
        typer.echo(csv_of(rows, settings), nl=False)
    else:
        for line in lines_of(rows, settings):
            typer.echo(as_shown(line))


@app.command("page")
def page(
    name: _Name,
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="Page to write.")],
    jobs_dir: JobsDirOption = None,
    sort: _Sort = None,
) -> None:
    """Write a page of all points: their losses, settings against what came of them, and the table.

    Example:

        glmforge sweep page lr --out lr.html
    """
    from glmforge.report.sweep_page import write_sweep_page
    from glmforge_ops.jobs.sweep.view import view_of

    sweep = _open(name, jobs_dir)
    write_sweep_page(view_of(sweep.record, sweep.results(), sort), out)
    tell(f"{out}: {len(sweep.record.points):,} points")


@app.command("resubmit")
def resubmit(
    name: _Name,
    failed: Annotated[
        bool, typer.Option("--failed", help="Those that failed only, not those cancelled, stopped or not begun.")
    ] = False,
    jobs_dir: JobsDirOption = None,
    detach: DetachOption = False,
) -> None:
    """Submit again what has not finished and neither waits nor runs; runs go on from their last checkpoint.

    Without a scheduler the points are run from here, as many at once as the sweep says.

    Examples:

        glmforge sweep resubmit lr

        glmforge sweep resubmit lr --failed
    """
    _start(_open(name, jobs_dir), failed_only=failed, detach=detach)


@app.command("cancel")
def cancel(name: _Name, jobs_dir: JobsDirOption = None) -> None:
    """Cancel every point that waits or runs; what has been trained stays.

    Example:

        glmforge sweep cancel lr
    """
    cancelled = _open(name, jobs_dir).cancel()
    tell(f"{name}: {len(cancelled):,} points cancelled" if cancelled else f"{name}: no point waits or runs")


@app.command("task", hidden=True)
def task(
    directory: Annotated[Path, typer.Argument(help="Of the sweep.")],
    number: Annotated[int, typer.Argument(min=0, help="Of the array's task.")],
) -> None:
    """Run a point of a sweep: what a task of its array does.

    Example:

        glmforge sweep task jobs/lr "$SLURM_ARRAY_TASK_ID"
    """
    from glmforge_ops.jobs.sweep.task import run_task

    run_task(directory, number)


def _start(sweep: "Sweep", *, failed_only: bool, detach: bool, as_json: bool = False) -> None:
    name = sweep.record.name
    if sweep.is_array:
        submitted = sweep.submit_array(failed_only=failed_only)
        _tell_machine(sweep, as_json)
        tell(f"{len(submitted):,} points submitted" if submitted else f"{name}: nothing is left to submit")
        tell(f"Next: glmforge sweep show {name}")
        return
    _tell_machine(sweep, as_json)
    if detach:
        go_on_detached(["sweep", "resubmit", *(["--failed"] if failed_only else [])], sweep.directory.root)
        return
    ended = sweep.run_here(lambda job, words: tell(f"{job}: {words}"), failed_only=failed_only)
    tell_how_many_finished("sweep", name, "points", ended.values(), len(ended))


def _open(name: str, jobs_dir: Path | None) -> "Sweep":
    from glmforge_ops.jobs.kinds import directory_of
    from glmforge_ops.jobs.submit.hand_over import scheduler_of
    from glmforge_ops.jobs.submit.new_job import jobs_root
    from glmforge_ops.jobs.sweep.record import SweepDirectory
    from glmforge_ops.jobs.sweep.work import Sweep

    return Sweep(SweepDirectory(directory_of(jobs_root(jobs_dir), name, "sweep")), scheduler_of)


def _tell_machine(sweep: "Sweep", as_json: bool) -> None:
    """On stdout, where it is asked for; points that were not handed over have no submission yet."""
    if not as_json:
        return
    from glmforge_ops.jobs.job import JobDirectory

    record, root = sweep.record, sweep.directory.root
    points = []
    for point in record.points:
        submissions = JobDirectory(root.parent / point.job).read_submissions()
        number = submissions[-1].id if submissions else None
        points.append({"name": point.job, "submission": number, "settings": point.settings})
    told = {"name": record.name, "directory": str(root), "launcher": record.launcher, "points": points}
    typer.echo(json.dumps(told))
