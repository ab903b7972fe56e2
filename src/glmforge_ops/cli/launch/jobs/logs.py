"""`glmforge jobs logs` and `glmforge jobs follow`."""

import sys
import time
from typing import Annotated

import typer

from glmforge_ops.cli.launch.jobs.options import JobsDirOption, NameArgument, find_one

RankOption = Annotated[int | None, typer.Option(min=0, help="Of this rank.", show_default="who failed first, else 0")]
AllOption = Annotated[bool, typer.Option("--all", help="Of all ranks, in the order of their times.")]
GrepOption = Annotated[str | None, typer.Option(help="Only lines in which this regular expression is found.")]
_LOOK_EVERY_S = 1.0
_ASK_EVERY_S = 10.0


def logs(
    name: NameArgument,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this one.", show_default="the newest")] = None,
    rank: RankOption = None,
    every: AllOption = False,
    grep: GrepOption = None,
    tail: Annotated[int | None, typer.Option(min=1, help="The last lines, so many.", show_default="all")] = None,
    scheduler: Annotated[
        bool, typer.Option("--scheduler", help="Instead: what the scheduler's shell and the supervisor printed.")
    ] = False,
    jobs_dir: JobsDirOption = None,
) -> None:
    """Print what a rank has printed: by default the one that failed first in the newest attempt, else rank 0.

    Each line begins with its time, rank and step.

    Examples:

        glmforge jobs logs air --tail 50

        glmforge jobs logs air --attempt 2 --all --grep 'loss|Error'
    """
    from glmforge.cli.terminal import as_shown
    from glmforge_ops.jobs.show.logs import lines_of, logs_of, pattern_of, scheduler_logs
    from glmforge_ops.jobs.state.find import job_directory
    from glmforge_ops.jobs.submit.new_job import jobs_root

    if every and rank is not None:
        raise typer.BadParameter("give --all or --rank, not both")
    pattern = None if grep is None else pattern_of(grep)
    job = job_directory(jobs_root(jobs_dir), name)
    chosen = scheduler_logs(job) if scheduler else logs_of(job, attempt=attempt, rank=rank, every=every)
    for line in lines_of(chosen, pattern=pattern, tail=tail):
        typer.echo(as_shown(line))


def follow(
    name: NameArgument,
    rank: RankOption = None,
    every: AllOption = False,
    grep: GrepOption = None,
    tail: Annotated[int, typer.Option(min=0, help="Begin with so many of the last lines.")] = 10,
    jobs_dir: JobsDirOption = None,
) -> None:
    """Print what a job prints until it ends, over all attempts and requeues. Ctrl-C leaves the job alone.

    Exit status 0 if the job finishes, was stopped or cancelled, 1 if it fails.

    Example:

        glmforge jobs follow air --grep loss
    """
    from glmforge.cli.interruptible import interruptible
    from glmforge.cli.terminal import as_shown
    from glmforge_ops.jobs.show.follow import Followed
    from glmforge_ops.jobs.show.logs import pattern_of
    from glmforge_ops.jobs.show.words import headline
    from glmforge_ops.jobs.state.job_state import JobState

    if every and rank is not None:
        raise typer.BadParameter("give --all or --rank, not both")
    followed = Followed(
        lambda: find_one(jobs_dir, name),
        rank=rank,
        every=every,
        pattern=None if grep is None else pattern_of(grep),
        tail=tail,
        ask_every_s=_ASK_EVERY_S,
    )
    with interruptible("the job goes on"):
        for said in followed.rounds():
            for note in said.notes:
                typer.echo(as_shown(note), err=True)
            for line in said.lines:
                typer.echo(as_shown(line))
            sys.stdout.flush()
            if not said.lines:
                time.sleep(_LOOK_EVERY_S)
    job = followed.job
    typer.echo(as_shown(": ".join(filter(None, [headline(job), job.why]))), err=True)
    raise typer.Exit(1 if job.state is JobState.FAILED else 0)
