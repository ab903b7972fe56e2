"""`glmforge jobs cancel`, `resubmit` and `allow`."""

from typing import Annotated

import typer

from glmforge_ops.cli.launch.jobs.options import JobsDirOption, NameArgument, NamesArgument, find


def cancel(names: NamesArgument, jobs_dir: JobsDirOption = None) -> None:
    """End jobs: through their scheduler, or by telling the supervisor that runs here. Asks nothing.

    A training run saves before it ends, as before a preemption. A job that has ended already is left. Exit status 1
    if one could not be ended.

    Examples:

        glmforge jobs cancel air

        glmforge jobs cancel 'lr-*'
    """
    from glmforge.errors import GlmforgeError
    from glmforge.files import escaped
    from glmforge_ops.jobs.control import cancel as cancel_job
    from glmforge_ops.jobs.submit.hand_over import scheduler_of

    failed = False
    for job in find(jobs_dir, names):
        try:
            typer.echo(escaped(cancel_job(job, scheduler_of)))
        except GlmforgeError as error:  # the others are still to be ended
            typer.echo(f"glmforge: {escaped(str(error))}", err=True)
            failed = True
    raise typer.Exit(1 if failed else 0)


def resubmit(
    names: NamesArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Even if its scheduler cannot tell whether it has ended.")
    ] = False,
    jobs_dir: JobsDirOption = None,
) -> None:
    """Submit jobs again as they were. A training run goes on from its newest checkpoint.

    A job that waits or runs is refused. Exit status 1 if one could not be submitted.

    Example:

        glmforge jobs resubmit air
    """
    from glmforge.errors import GlmforgeError
    from glmforge.files import escaped
    from glmforge_ops.jobs.control import resubmit as resubmit_job
    from glmforge_ops.jobs.submit.hand_over import scheduler_of

    failed = False
    for job in find(jobs_dir, names):
        try:
            done = resubmit_job(job, scheduler_of, force=force)
        except GlmforgeError as error:  # the others are still to be submitted
            typer.echo(f"glmforge: {escaped(str(error))}", err=True)
            failed = True
        else:
            for warning in done.warnings:
                typer.echo(escaped(f"warning: {job.name}: {warning}"), err=True)
            typer.echo(escaped(f"{job.name}: submitted again ({done.submission.launcher} {done.submission.id})"))
    raise typer.Exit(1 if failed else 0)


def allow(
    name: NameArgument,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Nodes that are out.")],
    jobs_dir: JobsDirOption = None,
) -> None:
    """Let a job use nodes again that its supervisor has put out: 'glmforge jobs show' names them.

    What happened to them before no longer counts. A supervisor that runs takes them at its next attempt. A node that
    was drained for all users is resumed by whoever runs the cluster.

    Example:

        glmforge jobs allow air node7
    """
    from glmforge.files import escaped
    from glmforge_ops.jobs.cancelled import who
    from glmforge_ops.jobs.state.find import job_directory
    from glmforge_ops.jobs.submit.new_job import jobs_root
    from glmforge_ops.jobs.supervisor.nodes import allow as allow_nodes

    for node in allow_nodes(job_directory(jobs_root(jobs_dir), name), nodes, who()):
        typer.echo(escaped(f"{name}: {node} is used again"))
