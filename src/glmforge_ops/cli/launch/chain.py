"""`glmforge chain`: stages that follow each other, from one file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge_ops.cli.launch.common import (
    DetachOption,
    JobsDirOption,
    JsonOption,
    go_on,
    print_lines,
    tell,
)

if TYPE_CHECKING:
    from glmforge_ops.jobs.chain.chain import Chain

app = typer.Typer(no_args_is_help=True, help="Chains of stages, such as corpus, pre-training, SFT, evaluation.")

_Name = Annotated[str, typer.Argument(help="A chain.")]


@app.command("run")
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The chain.")],
    jobs_dir: JobsDirOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print all of it; submit nothing.")] = False,
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
    from glmforge_ops.jobs import submit
    from glmforge_ops.jobs.chain.chain import Chain, make_chain
    from glmforge_ops.jobs.registry import jobs_root

    new = make_chain(file, jobs_root(jobs_dir), Path.cwd())
    if dry_run:
        for stage, job in zip(new.stages, new.jobs, strict=True):
            after = f", after {', '.join(stage.needs)}" if stage.needs else ""
            typer.echo(f"### stage {stage.name}: job {stage.job}{after}")
            what = job.description.run or " ".join(job.description.command)
            for name, value in {"run" if job.config else "command": what, **stage.outputs}.items():
                typer.echo(f"### {name}: {value}")
            typer.echo(job.script)
        tell(f"{new.root}: is where it would be; nothing was submitted")
        return
    new.check(submit.scheduler_of, plan=plan)
    new.write()
    go_on(Chain(new.root, submit.scheduler_of), "chain", detach=detach)


@app.command("show")
def show(name: _Name, jobs_dir: JobsDirOption = None, as_json: JsonOption = False) -> None:
    """Show every stage: its state, and what keeps the chain from going on.

    Examples:

        glmforge chain show life

        glmforge chain show life --json
    """
    from glmforge_ops.jobs.chain.chain import as_rows, lines_of

    chain = _open(name, jobs_dir)
    if as_json:
        typer.echo(json.dumps(as_rows(chain), indent=1))
    else:
        print_lines(lines_of(chain))


@app.command("resume")
def resume(name: _Name, jobs_dir: JobsDirOption = None, detach: DetachOption = False) -> None:
    """Go on with a chain: what has finished stays, what waits or runs stays, the rest is submitted.

    After a failure, a cancellation, or a kill at any moment. A stage that waits for a submission that has failed is
    submitted again, since Slurm would let it wait for ever.

    Example:

        glmforge chain resume life
    """
    go_on(_open(name, jobs_dir), "chain", detach=detach)


@app.command("cancel")
def cancel(name: _Name, jobs_dir: JobsDirOption = None) -> None:
    """Cancel every stage that waits or runs; what has been trained stays, and 'resume' goes on from there.

    Example:

        glmforge chain cancel life
    """
    cancelled = _open(name, jobs_dir).cancel()
    tell(f"{name}: cancelled {', '.join(cancelled)}" if cancelled else f"{name}: no stage waits or runs")


def _open(name: str, jobs_dir: Path | None) -> "Chain":
    from glmforge_ops.jobs import submit
    from glmforge_ops.jobs.chain.chain import Chain
    from glmforge_ops.jobs.registry import directory_of, jobs_root

    return Chain(directory_of(jobs_root(jobs_dir), name, "chain"), submit.scheduler_of)
