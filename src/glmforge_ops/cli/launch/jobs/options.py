"""What the commands about jobs share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmforge_ops.jobs.state.find import Job

JobsDirOption = Annotated[Path | None, typer.Option(help="Where jobs lie.", show_default="$GLMFORGE_JOBS, else ./jobs")]
NameArgument = Annotated[str, typer.Argument(help="A job.")]
NamesArgument = Annotated[list[str], typer.Argument(help="Jobs: names, or patterns such as 'lr-*'.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def find(jobs_dir: Path | None, names: list[str] | None) -> "list[Job]":
    """The jobs of these names and patterns, all of them without any."""
    from glmforge_ops.jobs.state.find import chosen_names, find_jobs, job_names
    from glmforge_ops.jobs.submit.hand_over import scheduler_of
    from glmforge_ops.jobs.submit.new_job import jobs_root

    root = jobs_root(jobs_dir)
    return find_jobs(root, chosen_names(root, names) if names else job_names(root), scheduler_of)


def find_one(jobs_dir: Path | None, name: str) -> "Job":
    """The job of this name; raises `LaunchError` with the nearest one if there is none."""
    from glmforge_ops.jobs.state.find import find_jobs, job_directory
    from glmforge_ops.jobs.submit.hand_over import scheduler_of
    from glmforge_ops.jobs.submit.new_job import jobs_root

    root = jobs_root(jobs_dir)
    return find_jobs(root, [job_directory(root, name).name], scheduler_of)[0]
