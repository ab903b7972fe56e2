"""`glmforge jobs`: jobs by name, for all launchers."""

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge_ops.cli.launch.common import JobsDirOption, JsonOption, find, print_lines, tell

if TYPE_CHECKING:
    from glmforge_ops.jobs.registry import Job

app = typer.Typer(help="Jobs by name: list, show, read, follow, cancel, submit again.")

_Name = Annotated[str, typer.Argument(help="A job.")]
_Names = Annotated[list[str], typer.Argument(help="Jobs: names, or patterns such as 'lr-*'.")]
_Rank = Annotated[int | None, typer.Option(min=0, help="Of this rank.", show_default="the first that failed, else 0")]
_All = Annotated[bool, typer.Option("--all", help="Of all ranks, in the order of their times.")]
_LOOK_EVERY_S = 1.0


@app.callback(invoke_without_command=True)
def jobs(context: typer.Context) -> None:
    """Without a command: list."""
    if context.invoked_subcommand is None:
        list_jobs()


@app.command("list")
def list_jobs(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; 'lr-*' is a pattern.")
    ] = None,
    jobs_dir: JobsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs: state, launcher, number, attempt, steps, age, and why a job waits or has failed.

    Examples:

        glmforge jobs list

        glmforge jobs list 'lr-*' --json
    """
    from glmforge_ops.jobs.registry import as_dict, jobs_root
    from glmforge_ops.jobs.show import COLUMNS, aligned, job_row

    found = find(jobs_dir, names)
    if as_json:
        typer.echo(json.dumps([as_dict(job) for job in found], indent=1))
    elif found:
        print_lines(list(aligned([COLUMNS, *map(job_row, found)])))
    else:
        typer.echo(f"{jobs_root(jobs_dir)}: no jobs; 'glmforge launch' makes one")


@app.command()
def show(name: _Name, jobs_dir: JobsDirOption = None, as_json: JsonOption = False) -> None:
    """Show a job: attempts with their nodes and verdicts, the rank that failed first, excluded nodes.

    The last line is the command that may come next.

    Example:

        glmforge jobs show air
    """
    from glmforge_ops.jobs.show import about, about_dict

    job = find(jobs_dir, [name])[0]
    if as_json:
        typer.echo(json.dumps(about_dict(job), indent=1))
    else:
        print_lines(about(job))


@app.command()
def logs(
    name: _Name,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this one.", show_default="the newest")] = None,
    rank: _Rank = None,
    every: _All = False,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last N lines.", show_default="all")] = None,
    scheduler: Annotated[
        bool, typer.Option("--scheduler", help="Instead: what the scheduler's shell and the supervisor printed.")
    ] = False,
    jobs_dir: JobsDirOption = None,
) -> None:
    """Print what a rank has printed: by default the one that failed first in the newest attempt, else rank 0.

    Each line begins with its time, rank and step.

    Examples:

        glmforge jobs logs air --tail 50

        glmforge jobs logs air --attempt 2 --all
    """
    from glmforge.cli.terminal import as_shown
    from glmforge_ops.jobs.logs import lines_of, logs_of, scheduler_logs
    from glmforge_ops.jobs.registry import job_directory, jobs_root

    job = job_directory(jobs_root(jobs_dir), name)
    chosen = scheduler_logs(job) if scheduler else logs_of(job, attempt=attempt, rank=rank, every=every)
    for line in lines_of(chosen, tail):
        typer.echo(as_shown(line))


@app.command()
def follow(
    name: _Name,
    rank: _Rank = None,
    every: _All = False,
    tail: Annotated[int, typer.Option(min=0, help="Begin with the last N lines.")] = 10,
    jobs_dir: JobsDirOption = None,
) -> None:
    """Print what a job prints until it ends, over all attempts and requeues. Ctrl-C leaves the job alone.

    Exit status 0 if the job finishes, was stopped or cancelled, 1 if it fails.

    Example:

        glmforge jobs follow air
    """
    from glmforge.cli.interruptible import interruptible
    from glmforge_ops.jobs.logs import follow as follow_job
    from glmforge_ops.jobs.show import headline

    with interruptible("the job goes on"):
        for found, notes, lines in follow_job(lambda: find(jobs_dir, [name])[0], None if every else rank or 0, tail):
            job = found
            for note in notes:
                tell(note)
            print_lines(lines)
            sys.stdout.flush()
            if not lines:
                time.sleep(_LOOK_EVERY_S)
    tell(": ".join(filter(None, [headline(job), job.why])))
    raise typer.Exit(1 if job.state == "failed" else 0)


@app.command()
def cancel(names: _Names, jobs_dir: JobsDirOption = None) -> None:
    """End jobs: through their scheduler, or by a signal to the supervisor that runs here. Asks nothing.

    A training run saves before it ends, as before a preemption. Exit status 1 if a job could not be ended.

    Examples:

        glmforge jobs cancel air

        glmforge jobs cancel 'lr-*'
    """
    from glmforge_ops.jobs import control, submit

    _each(find(jobs_dir, names), lambda job: control.cancel(job, submit.scheduler_of))


@app.command()
def resubmit(
    names: _Names,
    force: Annotated[bool, typer.Option("--force", help="Even if it is not known whether it has ended.")] = False,
    jobs_dir: JobsDirOption = None,
) -> None:
    """Submit jobs again as they were. A training run goes on from its newest checkpoint.

    A job that waits or runs is refused; one that Slurm holds since a start failed is released. Exit status 1 if a job
    could not be submitted.

    Example:

        glmforge jobs resubmit air
    """
    from glmforge_ops.jobs import control, submit

    def again(job: "Job") -> str:
        submission = control.resubmit(job, submit.scheduler_of, force=force)
        return f"{job.name}: submitted again ({submission.launcher} {submission.id})"

    _each(find(jobs_dir, names), again)


@app.command()
def allow(
    name: _Name,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Excluded nodes.")],
    jobs_dir: JobsDirOption = None,
) -> None:
    """Let a job use nodes again that its supervisor has excluded: 'glmforge jobs show' names them.

    Earlier failures of these nodes no longer count. A running supervisor uses them from its next attempt on. A node
    that was drained for all users is resumed by the cluster's administrator.

    Example:

        glmforge jobs allow air node7
    """
    from glmforge_ops.jobs.control import who
    from glmforge_ops.jobs.registry import job_directory, jobs_root
    from glmforge_ops.jobs.supervisor.nodes import allow as allow_nodes

    allowed = allow_nodes(job_directory(jobs_root(jobs_dir), name), nodes, who())
    print_lines([f"{name}: {node} is used again" for node in allowed])


@app.command()
def goodput(
    names: _Names,
    attempts: Annotated[bool, typer.Option("--attempts", help="Also of the newest attempts.")] = False,
    as_json: JsonOption = False,
    jobs_dir: JobsDirOption = None,
) -> None:
    """Show which part of the allocated time of jobs' nodes was useful, and to what the rest was lost.

    From the jobs' own files. Shares add up to the whole.

    Example:

        glmforge jobs goodput air --attempts

        glmforge jobs goodput 'lr-*' --json
    """
    from glmforge.observe.job_records import JobDirectory
    from glmforge.report import goodput as measure
    from glmforge_ops.jobs.registry import chosen_names, jobs_root
    from glmforge_ops.jobs.show import aligned

    root = jobs_root(jobs_dir)
    found = [measure.goodput_of(JobDirectory(root / name)) for name in chosen_names(root, names)]
    if as_json:
        typer.echo(json.dumps([measure.as_dict(each) for each in found], indent=1))
        return
    for each in found:
        rows = [[f"  {row[0]}", *row[1:]] for row in measure.rows_of(each, attempts=attempts)]
        print_lines([measure.headline(each), *(aligned(rows) if rows[1:] else ())])


def _each(jobs: "list[Job]", do: "Callable[[Job], str]") -> None:
    """Print what was done for each job; exit status 1 if there was an error, after the rest."""
    from glmforge.errors import GlmforgeError

    failed = False
    for job in jobs:
        try:
            print_lines([do(job)])
        except GlmforgeError as error:
            tell(f"glmforge: {error}")
            failed = True
    raise typer.Exit(1 if failed else 0)
