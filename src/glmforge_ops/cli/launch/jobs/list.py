"""`glmforge jobs list`."""

import json
from typing import Annotated

import typer

from glmforge_ops.cli.launch.jobs.options import JobsDirOption, JsonOption, find


def list_jobs(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; 'lr-*' is a pattern.")
    ] = None,
    jobs_dir: JobsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs: state, launcher, number, attempt, steps, age, and why a job waits or has failed.

    From the jobs' files, and one question to each scheduler. A job whose files are damaged is listed as that.

    Examples:

        glmforge jobs list

        glmforge jobs list 'lr-*' --json
    """
    from glmforge.cli.terminal import as_shown
    from glmforge_ops.jobs.columns import aligned
    from glmforge_ops.jobs.show.words import COLUMNS, job_row
    from glmforge_ops.jobs.state.find import as_dict
    from glmforge_ops.jobs.submit.new_job import jobs_root

    found = find(jobs_dir, names)
    if as_json:
        typer.echo(json.dumps([as_dict(job) for job in found], indent=1))
    elif found:
        for line in aligned([COLUMNS, *map(job_row, found)]):
            typer.echo(as_shown(line))
    else:
        typer.echo(f"{jobs_root(jobs_dir)}: no jobs; 'glmforge launch' makes one")
