"""`glmforge jobs show`."""

import json

import typer

from glmforge_ops.cli.launch.jobs.options import JobsDirOption, JsonOption, NameArgument, find_one


def show(name: NameArgument, jobs_dir: JobsDirOption = None, as_json: JsonOption = False) -> None:
    """Show a job: attempts with their nodes and verdicts, the rank that failed first, nodes that are out.

    The last line is the command that may come next.

    Example:

        glmforge jobs show air
    """
    from glmforge.cli.terminal import as_shown
    from glmforge_ops.jobs.show.about import about, about_dict

    job = find_one(jobs_dir, name)
    if as_json:
        typer.echo(json.dumps(about_dict(job), indent=1))
        return
    for line in about(job):
        typer.echo(as_shown(line))
