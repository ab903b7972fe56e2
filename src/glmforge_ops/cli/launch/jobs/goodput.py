"""`glmforge jobs goodput`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from glmforge_ops.cli.launch.jobs.options import JobsDirOption, JsonOption, NamesArgument


def goodput(
    names: NamesArgument,
    attempts: Annotated[bool, typer.Option("--attempts", help="Also attempt by attempt.")] = False,
    as_json: JsonOption = False,
    prometheus: Annotated[
        Path | None, typer.Option(help="Also write the metrics of the jobs to this file, as Prometheus reads them.")
    ] = None,
    jobs_dir: JobsDirOption = None,
) -> None:
    """Tell which part of the allocated time of jobs' nodes was useful, and to what the rest was lost.

    From Slurm's accounting where there is one, else from the jobs' own files. Shares add up to the whole.

    Examples:

        glmforge jobs goodput air --attempts

        glmforge jobs goodput 'lr-*' --prometheus /var/lib/node_exporter/jobs.prom
    """
    from glmforge.cli.terminal import as_shown
    from glmforge.observe.run import write_text
    from glmforge_ops.jobs.goodput.measure import as_dict, goodput_of
    from glmforge_ops.jobs.goodput.measure import prometheus as as_text
    from glmforge_ops.jobs.goodput.words import table_of
    from glmforge_ops.jobs.job import JobDirectory
    from glmforge_ops.jobs.state.find import chosen_names
    from glmforge_ops.jobs.submit.new_job import jobs_root

    root = jobs_root(jobs_dir)
    found = [goodput_of(JobDirectory(root / name)) for name in chosen_names(root, names)]
    if prometheus is not None:
        write_text(prometheus, as_text(found))
    if as_json:
        typer.echo(json.dumps([as_dict(each) for each in found], indent=1))
        return
    for line in (line for each in found for line in table_of(each, attempts=attempts)):
        typer.echo(as_shown(line))
