"""`glmforge chain`: stages that follow each other, from one file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge_ops.cli.launch.together import DetachOption, JobsDirOption, go_on_detached, tell, tell_how_many_finished

if TYPE_CHECKING:
    from glmforge_ops.jobs.chain.make import NewChain
    from glmforge_ops.jobs.chain.work import Chain

app = typer.Typer(no_args_is_help=True, help="Chains of stages, such as corpus, pre-training, SFT, evaluation.")

_Name = Annotated[str, typer.Argument(help="A chain.")]


@app.command("run")
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The chain.")],
    jobs_dir: JobsDirOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print all of it; ask and submit nothing.")] = False,
    plan: Annotated[bool, typer.Option("--plan/--no-plan", help="Refuse runs that by plan do not fit.")] = True,
    detach: DetachOption = False,
) -> None:
    """Run a chain of stages: every stage is checked before the first one is submitted.

    Under Slurm and PBS all stages are submitted at once, each to start when those that it needs have finished well.
    With other launchers they are run from here, one after the other.

    FILE.yaml has a name, launch (options of 'glmforge launch' for every stage) and stages. A stage has a config with
    overrides, or a command; needs, the stages that come before it; launch, options of its own; and outputs, files that
    it writes, by name. What an earlier stage writes is named ${pretrain.run} (of a training stage), ${corpus.job} (its
    job's directory) or ${corpus.outputs.shards}. See docs/sweeps.md.

    Examples:

        glmforge chain run life.yaml --dry-run

        glmforge chain run life.yaml

        glmforge chain run life.yaml --jobs-dir /shared/jobs
    """
    from glmforge_ops.jobs.chain.make import make_chain
    from glmforge_ops.jobs.chain.work import Chain
    from glmforge_ops.jobs.submit.hand_over import scheduler_of
    from glmforge_ops.jobs.submit.new_job import jobs_root

    new = make_chain(file, jobs_root(jobs_dir), Path.cwd())
    if dry_run:
        _print_all(new)
        return
    new.check(scheduler_of)
    if plan:
        new.check_fit()
    new.write()
    _go_on(Chain(new.directory, scheduler_of), detach=detach)


@app.command("show")
def show(
    name: _Name,
    jobs_dir: JobsDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every stage: its state, and what keeps the chain from going on.

    Examples:

        glmforge chain show life

        glmforge chain show life --json
    """
    from glmforge.cli.terminal import as_shown
    from glmforge_ops.jobs.chain.words import as_rows, lines_of

    told = _open(name, jobs_dir).states()
    if as_json:
        typer.echo(json.dumps(as_rows(told), indent=1))
        return
    for line in lines_of(told):
        typer.echo(as_shown(line))


@app.command("resume")
def resume(name: _Name, jobs_dir: JobsDirOption = None, detach: DetachOption = False) -> None:
    """Go on with a chain: what has finished stays, what waits or runs stays, the rest is submitted.

    After a failure, a cancellation, or a kill at any moment. A stage that waits for a submission that has failed is
    submitted again, since Slurm would let it wait for ever.

    Example:

        glmforge chain resume life
    """
    _go_on(_open(name, jobs_dir), detach=detach)


@app.command("cancel")
def cancel(name: _Name, jobs_dir: JobsDirOption = None) -> None:
    """Cancel every stage that waits or runs; what has been trained stays, and 'resume' goes on from there.

    Example:

        glmforge chain cancel life
    """
    cancelled = _open(name, jobs_dir).cancel()
    tell(f"{name}: cancelled {', '.join(cancelled)}" if cancelled else f"{name}: no stage waits or runs")


def _go_on(chain: "Chain", *, detach: bool) -> None:
    name = chain.record.name
    if chain.is_submitted_at_once:
        chain.submit(lambda stage, words: tell(f"{stage}: {words}"))
        tell(f"Next: glmforge chain show {name}")
        return
    if detach:
        go_on_detached(["chain", "resume"], chain.directory.root)
        return
    ended = chain.run_here(lambda stage, words: tell(f"{stage}: {words}"))
    tell_how_many_finished("chain", name, "stages", ended.values(), len(chain.record.stages))


def _print_all(new: "NewChain") -> None:
    for stage, job in zip(new.stages, new.jobs, strict=True):
        ids = ":".join(f"<{need}>" for need in stage.needs)
        after = f", after {', '.join(stage.needs)} (--dependency=afterok:{ids})" if stage.needs else ""
        typer.echo(f"### stage {stage.name}: job {stage.job}{after}")
        if stage.run is not None:
            typer.echo(f"### run: {stage.run}")
        for name, path in stage.outputs.items():
            typer.echo(f"### output {name}: {path}")
        typer.echo(f"### command: {' '.join(job.description.command)}")
        typer.echo(job.script)
    typer.echo(f"{new.directory.root}: is where it would be; nothing was submitted", err=True)


def _open(name: str, jobs_dir: Path | None) -> "Chain":
    from glmforge_ops.jobs.chain.record import ChainDirectory
    from glmforge_ops.jobs.chain.work import Chain
    from glmforge_ops.jobs.kinds import directory_of
    from glmforge_ops.jobs.submit.hand_over import scheduler_of
    from glmforge_ops.jobs.submit.new_job import jobs_root

    return Chain(ChainDirectory(directory_of(jobs_root(jobs_dir), name, "chain")), scheduler_of)
