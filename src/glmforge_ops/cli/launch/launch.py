"""`glmforge launch`: a job, submitted."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.signature import takes
from glmforge_ops.cli.launch.options import LaunchOptions, read_launch
from glmforge_ops.cli.launch.sweep import launch_sweep

if TYPE_CHECKING:
    from glmforge.config.launch import LaunchConfig
    from glmforge_ops.jobs.job import Submission
    from glmforge_ops.jobs.submit.new_job import NewJob

_JOB, _BEFORE, _SWEEP = "Job", "Before it is submitted", "Sweep"


@dataclass(frozen=True, kw_only=True)
class _Options(LaunchOptions):
    """Of `glmforge launch` alone."""

    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG [key.sub=value]...",
            help="A run's YAML file or a packaged run's name, and settings to change; with --script, its arguments.",
        ),
    ] = None
    script: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A program of your own, on every rank; see below.", rich_help_panel=_JOB),
    ] = None
    name: Annotated[str | None, typer.Option(help="Default: the run's.", rich_help_panel=_JOB)] = None
    jobs_dir: Annotated[
        Path | None,
        typer.Option(help="Where jobs lie.", show_default="$GLMFORGE_JOBS, or ./jobs", rich_help_panel=_JOB),
    ] = None
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of the script: one of your own.", rich_help_panel=_JOB)
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2 [KEY=...]",
            help="A run for each value, or log(low,high,count); several keys: the product. See 'glmforge sweep'.",
            rich_help_panel=_SWEEP,
        ),
    ] = None
    sweep_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Points, grid, random search, as YAML.", rich_help_panel=_SWEEP)
    ] = None
    at_once: Annotated[
        int | None,
        typer.Option(
            help="Most runs of the sweep at the same time.",
            show_default="no limit; 1 without a scheduler",
            rich_help_panel=_SWEEP,
        ),
    ] = None
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Without a scheduler: run on when this terminal is gone.", rich_help_panel=_JOB),
    ] = False
    interactive: Annotated[
        bool,
        typer.Option("--interactive", help="A shell with the job's nodes and variables, no job.", rich_help_panel=_JOB),
    ] = False
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Kind of GPU that the plan is compared with: h100-80gb. Default: what is found.",
            rich_help_panel=_BEFORE,
        ),
    ] = None
    plan: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Refuse a run that by plan does not fit.", rich_help_panel=_BEFORE)
    ] = True
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="By ssh and MPI: quick checks of the nodes.", rich_help_panel=_BEFORE),
    ] = True
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script; ask and submit nothing.", rich_help_panel=_BEFORE)
    ] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Say what was submitted to a machine.", rich_help_panel=_JOB)
    ] = False


@takes(_Options)
def launch(options: _Options) -> None:
    """Submit a job: a training run, or a program of your own, under Slurm, PBS, by ssh, MPI, or on this machine.

    The job has a name and a directory with its script, its logs, and what became of it; a supervisor starts it again
    when a rank, a node or the scheduler ends it early.

    Examples:

        glmforge launch configs/small_1b.yaml --nodes 2 --gpus-per-node 8 --time 24:00:00

        glmforge launch run.yaml optim.lr=1e-4 --hosts 'node[1-4]' --gpus-per-node 8 --spare-nodes 1

        glmforge launch --script train.py --nodes 2 --gpus-per-node 8 -- --epochs 3

        glmforge launch configs/demo.yaml --dry-run

        glmforge launch run.yaml --nodes 1 --sweep optim.lr=log(1e-4,3e-3,5) model=tiny,demo --at-once 4

        glmforge launch --interactive --nodes 2 --gpus-per-node 8 --time 1:00:00
    """
    from glmforge_ops.jobs.submit.hand_over import scheduler_of

    config = read_launch(options)
    if options.interactive:
        _interact(options, config)
        return
    if options.sweep or options.sweep_file:
        _sweep(options, config)
        return
    job = _new_job(options, config)
    if options.dry_run:
        typer.echo(job.script, nl=False)
        typer.echo(f"{job.directory.root}: is where it would be; nothing was submitted", err=True)
        return
    scheduler_of(config.launcher).check(config)
    _look_before(job, options)
    _submit(job, options)


def _sweep(options: _Options, config: "LaunchConfig") -> None:
    if options.script is not None or not options.words:
        raise typer.BadParameter("a sweep is of a CONFIG, and not of a --script")
    launch_sweep(
        options.words,
        config,
        axes=options.sweep or [],
        file=options.sweep_file,
        at_once=options.at_once,
        name=options.name,
        jobs_dir=options.jobs_dir,
        template=options.template,
        gpu=options.gpu,
        plan=options.plan,
        check=options.check,
        dry_run=options.dry_run,
        detach=options.detach,
        as_json=options.as_json,
    )


def _new_job(options: _Options, config: "LaunchConfig") -> "NewJob":
    from glmforge_ops.jobs.submit.new_job import jobs_root, script_job, training_job

    words = options.words or []
    root = jobs_root(options.jobs_dir)
    if options.script is not None:
        return script_job(options.script, words, config, root, options.name, options.template)
    if not words:
        raise typer.BadParameter("give a CONFIG, or --script with a program of your own")
    return training_job(words[0], words[1:], config, root, options.name, options.template)


def _interact(options: _Options, config: "LaunchConfig") -> None:
    import shlex

    from glmforge_ops.jobs.submit.hand_over import scheduler_of
    from glmforge_ops.jobs.submit.interactive import allocation, enter

    if options.words or options.script is not None or options.sweep:
        raise typer.BadParameter("--interactive gives a shell, and runs nothing: leave out CONFIG and --script")
    command = allocation(config, options.name or "interactive")
    if options.dry_run:
        typer.echo(shlex.join(command))
        return
    scheduler_of(config.launcher).check(config)
    enter(command, config)


def _look_before(job: "NewJob", options: _Options) -> None:
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.jobs.submit.preflight import check_fit, check_nodes

    launch = job.description.launch
    if options.plan and job.config is not None:
        typer.echo(f"plan: {check_fit(job.config, launch, options.gpu)}", err=True)
    if options.check:
        with work_progress("checking", 16) as show:
            told = check_nodes(launch, show)
        if told is not None:
            typer.echo(f"check: {told}", err=True)


def _submit(job: "NewJob", options: _Options) -> None:
    from glmforge.config.secrets import require_secrets
    from glmforge_ops.jobs.schedulers.here import become, id_of_this_process
    from glmforge_ops.jobs.submit.hand_over import hand_over, note_submission

    launch = job.description.launch
    require_secrets(launch.secrets)
    in_foreground = launch.launcher in ("local", "ssh", "mpi") and not options.detach
    job.write()
    with job.removed_if_refused():
        if in_foreground:
            submission = note_submission(job.directory, id_of_this_process(), launch.launcher)
        else:
            submission = hand_over(job.directory, tasks=[task.directory for task in job.tasks])
    _tell(job, submission, as_json=options.as_json, runs_here=in_foreground)
    if in_foreground:
        become(job.directory)


def _tell(job: "NewJob", submission: "Submission", *, as_json: bool, runs_here: bool) -> None:
    from glmforge.observe.units import counted

    root = job.directory.root
    if as_json:
        told = {
            "name": job.directory.name,
            "directory": str(root),
            "launcher": submission.launcher,
            "submission": submission.id,
            "run": None if job.description.run is None else str(job.description.run),
        }
        typer.echo(json.dumps(told))
        return
    launch = job.description.launch
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    size = f"{counted(launch.nodes, 'node')} x {counted(launch.ranks, 'rank')}"
    where = "here" if submission.launcher not in ("slurm", "pbs") else f"to {submission.launcher} as {submission.id}"
    console.print(f"[bold]{job.directory.name}[/bold]: {size}, submitted {where}")
    if launch.supervise:
        console.print(f"Logs: {root}/attempts", markup=False)
    elif not runs_here:
        console.print(f"Logs: {root}/scheduler-*.log", markup=False)
    if not runs_here:
        console.print(f"Next: glmforge jobs follow {job.directory.name}", markup=False)
