"""`glmforge supervise`: what the script of a job runs."""

from pathlib import Path
from typing import Annotated

import typer


def supervise(
    job: Annotated[Path, typer.Argument(metavar="JOBDIR", help="The job's directory.")],
) -> None:
    """Start the ranks of a job, and start them again until it is done: 'glmforge launch' arranges that this is run.

    It ends with status 0 when the job is done or was stopped, with 75 when it gave way and is to be submitted again,
    and with 1 when it was given up; why stands in the job's events.jsonl and in 'glmforge jobs show'.

    Example:

        glmforge supervise jobs/air
    """
    from glmforge_ops.jobs.job import JobDirectory
    from glmforge_ops.jobs.supervisor.assemble import supervisor_of

    raise typer.Exit(supervisor_of(JobDirectory(job.absolute())).run())
