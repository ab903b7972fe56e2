"""`glmforge launch`: a job, or a sweep of them, submitted; and `glmforge supervise`, which the script of a job runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from glmforge.cli.signature import takes
from glmforge_ops.cli.launch.common import JobsDirOption, go_on, tell

if TYPE_CHECKING:
    from glmforge.config.launch import LaunchConfig
    from glmforge.observe.job_records import Submission
    from glmforge_ops.jobs.new_job import NewJob
    from glmforge_ops.jobs.sweep.sweep import Sweep


def _in(panel: str) -> Any:
    """Makes options of this panel of the help."""

    def option(*names: str, **given: Any) -> Any:
        return typer.Option(*names, rich_help_panel=panel, **given)

    return option


_job, _size, _where, _queue = _in("Job"), _in("Size"), _in("Where"), _in("Scheduler")
_how, _before, _sweep = _in("Supervision"), _in("Before it is submitted"), _in("Sweep")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is not given is None."""

    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG [key.sub=value]...",
            help="A run's YAML file or a packaged run's name, and settings to change; with --script, its arguments.",
        ),
    ] = None
    script: Annotated[Path | None, _job(metavar="FILE", help="A program of your own, on every rank; see below.")] = None
    name: Annotated[str | None, _job(help="Default: the run's.")] = None
    jobs_dir: JobsDirOption = None
    template: Annotated[Path | None, _job(metavar="FILE", help="Your own template of the job's script.")] = None
    detach: Annotated[bool, _job("--detach", help="Without a scheduler: run on when this terminal is gone.")] = False
    as_json: Annotated[bool, _job("--json", help="Print what was submitted as JSON.")] = False

    nodes: Annotated[int | None, _size(help="How many nodes.")] = None
    gpus_per_node: Annotated[int | None, _size(help="A rank for each.")] = None
    ranks_per_node: Annotated[int | None, _size(help="Default: one for each GPU, or one.")] = None
    cpus_per_task: Annotated[int | None, _size(help="CPUs of each rank.")] = None
    mem: Annotated[str | None, _size(help="Memory of each node: 64G.")] = None
    time: Annotated[str | None, _size(help="Limit, as Slurm writes it: 24:00:00, 2-00:00:00.")] = None
    exclusive: Annotated[bool | None, _size("--exclusive", help="Whole nodes.")] = None

    launcher: Annotated[
        str | None,
        _where(
            metavar="local|ssh|slurm|pbs|mpi",
            help="Default: ssh if hosts are given; else Slurm or PBS, whichever answers; else local.",
        ),
    ] = None
    hosts: Annotated[str | None, _where(help="For ssh and mpi: 'node[001-008],node12'.")] = None
    cluster: Annotated[Path | None, _where(help="cluster.yaml: hosts, ssh, interfaces.")] = None
    interface: Annotated[str | None, _where(help="Between nodes, such as eth0.")] = None
    container: Annotated[str | None, _where(help="Image in which every rank runs.")] = None
    env: Annotated[
        list[str] | None,
        _where(
            metavar="NAME[=VALUE]",
            help="A variable of every rank; may be repeated. NAME alone, and what looks like a secret, comes from the "
            "environment, and its value is in none of the job's files.",
        ),
    ] = None

    partition: Annotated[str | None, _queue(help="The queue, under PBS.")] = None
    qos: Annotated[str | None, _queue(help="Quality of service.")] = None
    account: Annotated[str | None, _queue(help="Account that is charged.")] = None
    constraint: Annotated[str | None, _queue(help="Features of nodes.")] = None
    nodelist: Annotated[str | None, _queue(help="Nodes that it must have: 'node[001-002]'.")] = None
    exclude: Annotated[str | None, _queue(help="Nodes not to use: 'node[003-004]'.")] = None
    array: Annotated[str | None, _queue(help="Tasks: 0-7, or 0-99%8.")] = None
    dependency: Annotated[str | None, _queue(help="Such as afterok:1234.")] = None
    signal: Annotated[str | None, _queue(help="Warning before the end: USR1@120.")] = None
    sbatch_arg: Annotated[
        list[str] | None, _queue(metavar="ARG", help="Any other option of sbatch: --mail-type=END; may be repeated.")
    ] = None

    min_nodes: Annotated[int | None, _how(help="Go on with so few.")] = None
    spare_nodes: Annotated[int | None, _how(help="Beside --nodes.")] = None
    options: Annotated[
        Path | None, _how(metavar="FILE", help="All of these, and more, as YAML; the command line wins.")
    ] = None

    sweep: Annotated[
        list[str] | None,
        _sweep(
            metavar="KEY=V1,V2",
            help="A run for each value, or log(low,high,count); may be repeated: the product. See 'glmforge sweep'.",
        ),
    ] = None
    sweep_file: Annotated[Path | None, _sweep(metavar="FILE", help="Points, as YAML.")] = None
    at_once: Annotated[
        int | None,
        _sweep(help="Most runs of the sweep at the same time.", show_default="no limit; 1 without a scheduler"),
    ] = None

    gpu: Annotated[
        str | None, _before(help="Kind of GPU that the plan is compared with: h100-80gb. Default: what is found.")
    ] = None
    plan: Annotated[bool, _before("--plan/--no-plan", help="Refuse a run that by plan does not fit.")] = True
    check: Annotated[bool, _before("--check/--no-check", help="By ssh and MPI: quick checks of the nodes.")] = True
    dry_run: Annotated[bool, _before("--dry-run", help="Print the script; submit nothing.")] = False


@takes(Options)
def launch(options: Options) -> None:
    """Submit a job: a training run, or a program of your own, under Slurm, PBS, by ssh, MPI, or on this machine.

    The job has a name and a directory with its script, logs and records. A supervisor starts it again when a rank, a
    node or the scheduler ends it early; by MPI it has no supervisor.

    Examples:

        glmforge launch configs/small_1b.yaml --nodes 2 --gpus-per-node 8 --time 24:00:00

        glmforge launch run.yaml optim.lr=1e-4 --hosts 'node[1-4]' --gpus-per-node 8 --spare-nodes 1

        glmforge launch --script train.py --nodes 2 --gpus-per-node 8 -- --epochs 3

        glmforge launch configs/demo.yaml --dry-run

        glmforge launch run.yaml --nodes 1 --sweep optim.lr=log(1e-4,3e-3,5) --at-once 4
    """
    from glmforge_ops.jobs import submit

    config = read_launch(options)
    if options.sweep or options.sweep_file:
        _launch_sweep(options, config)
        return
    job = _new_job(options, config)
    if options.dry_run:
        typer.echo(job.script, nl=False)
        tell(f"{job.directory.root}: is where it would be; nothing was submitted")
        return
    submit.scheduler_of(config.launcher).check(config)
    if options.plan and job.config is not None:
        from glmforge_ops.jobs.preflight import check_fit

        tell(f"plan: {check_fit(job.config, config, options.gpu)}")
    _check_nodes(options, config)
    _submit(job, options)


def supervise(
    job: Annotated[Path, typer.Argument(metavar="JOBDIR", help="The job's directory.")],
) -> None:
    """Start the ranks of a job, and start them again until it is done: the scripts of 'glmforge launch' run this.

    Exit status 0 when the job is done or was stopped, 75 when it gave way and is to be submitted again, 1 when it
    failed; 'glmforge jobs show' says why.

    Example:

        glmforge supervise jobs/air
    """
    from glmforge.observe.job_records import JobDirectory
    from glmforge_ops.jobs.new_job import make_task
    from glmforge_ops.jobs.supervisor.assemble import supervisor_of

    directory = JobDirectory(job.absolute())
    make_task(directory)
    raise typer.Exit(supervisor_of(directory).run())


def read_launch(options: Options) -> "LaunchConfig":
    """The options of the file and of the command line, with the launcher found. Raises `GlmforgeError`."""
    from glmforge.config.launch import LaunchConfig
    from glmforge.config.secrets import HIDDEN
    from glmforge.runtime.hostfile import parse_hosts
    from glmforge_ops.jobs.new_job import read_options

    given: dict[str, Any] = {name: getattr(options, name, None) for name in LaunchConfig.model_fields}
    for name in ("hosts", "nodelist", "exclude"):
        text = getattr(options, name)
        given[name] = None if text is None else parse_hosts(text, f"--{name}")
    if options.env is not None:
        pairs = (text.partition("=") for text in options.env)
        given["env"] = {name: value if equals else HIDDEN for name, equals, value in pairs}
    given["sbatch_args"] = options.sbatch_arg
    given["cluster"] = options.cluster and str(options.cluster.absolute())
    of_supervisor = {"min_nodes": options.min_nodes, "spare_nodes": options.spare_nodes}
    given["supervisor"] = {name: value for name, value in of_supervisor.items() if value is not None} or None
    return read_options(options.options, {name: value for name, value in given.items() if value is not None})


def _new_job(options: Options, config: "LaunchConfig") -> "NewJob":
    from glmforge_ops.jobs.new_job import script_job, training_job
    from glmforge_ops.jobs.registry import jobs_root

    words, root = options.words or [], jobs_root(options.jobs_dir)
    if options.script is not None:
        return script_job(options.script, words, config, root, options.name, options.template)
    if not words:
        raise typer.BadParameter("give a CONFIG, or --script with a program of your own")
    return training_job(words[0], words[1:], config, root, options.name, options.template)


def _launch_sweep(options: Options, launch: "LaunchConfig") -> None:
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.jobs import submit
    from glmforge_ops.jobs.registry import jobs_root
    from glmforge_ops.jobs.sweep.points import expand, settings_words
    from glmforge_ops.jobs.sweep.sweep import Sweep, make_sweep

    if options.script is not None or not options.words:
        raise typer.BadParameter("a sweep is of a CONFIG, and not of a --script")
    source, *overrides = options.words
    points = expand(options.sweep or [], options.sweep_file)
    with work_progress("checking points", first_line=200) as show:
        new = make_sweep(
            options.name,
            source,
            overrides,
            points,
            launch,
            jobs_root(options.jobs_dir),
            options.at_once,
            options.template,
            lambda done: show(done, f"{done:,} of {len(points):,}"),
        )
    if options.dry_run:
        typer.echo(new.script if new.script is not None else new.jobs[0].script, nl=False)
        for point in new.record.points:
            tell(f"{point.job}: {settings_words(point.settings)}")
        tell(f"{new.root}: is where it would be; nothing was submitted")
        return
    new.check(submit.scheduler_of)
    if options.plan:
        tell(f"plan: {new.check_fit(options.gpu)}")
    _check_nodes(options, launch)
    new.write()
    tell(f"{new.root.name}: {len(points):,} points in {new.root}-*")
    sweep = Sweep(new.root, submit.scheduler_of)
    go_on(sweep, "sweep", detach=options.detach, submitted=lambda: _report_sweep(sweep) if options.as_json else None)


def _report_sweep(sweep: "Sweep") -> None:
    points = [
        {"name": job.name, "submission": job.submission, "settings": point.settings}
        for point, job in zip(sweep.record.points, sweep.jobs(), strict=True)
    ]
    told = {"name": sweep.root.name, "directory": str(sweep.root), "launcher": sweep.record.launcher, "points": points}
    typer.echo(json.dumps(told))


def _check_nodes(options: Options, launch: "LaunchConfig") -> None:
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.jobs.preflight import check_nodes

    if options.check:
        with work_progress("checking", 16) as show:
            checked = check_nodes(launch, show)
        if checked is not None:
            tell(f"check: {checked}")


def _submit(job: "NewJob", options: Options) -> None:
    """The files of a job that was not submitted are removed, so that its name is free."""
    from glmforge.config.secrets import require_secrets
    from glmforge.errors import GlmforgeError
    from glmforge_ops.jobs.schedulers.here import become, id_of_this_process
    from glmforge_ops.jobs.submit import MayRunError, note_submission, submit

    launch = job.description.launch
    require_secrets(launch.secrets)
    in_foreground = launch.launcher in ("local", "ssh", "mpi") and not options.detach
    job.write()
    try:
        if in_foreground:
            submission = note_submission(job.directory, id_of_this_process(), launch.launcher)
        else:
            submission = submit(job.directory)
    except MayRunError:
        raise
    except GlmforgeError:
        job.remove()
        raise
    _report(job, submission, as_json=options.as_json, runs_here=in_foreground)
    if in_foreground:
        become(job.directory)


def _report(job: "NewJob", submission: "Submission", *, as_json: bool, runs_here: bool) -> None:
    from glmforge.observe.units import counted

    name, root, launch = job.directory.name, job.directory.root, job.description.launch
    if as_json:
        run = job.description.run and str(job.description.run)
        row = {"name": name, "directory": str(root), "launcher": submission.launcher, "submission": submission.id}
        typer.echo(json.dumps(row | {"run": run}))
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    size = f"{counted(launch.nodes, 'node')} x {counted(launch.ranks, 'rank')}"
    where = f"to {launch.launcher} as {submission.id}" if launch.launcher in ("slurm", "pbs") else "here"
    console.print(f"[bold]{name}[/bold]: {size}, submitted {where}")
    if launch.supervise or not runs_here:
        console.print(f"Logs: {root}/{'attempts' if launch.supervise else 'scheduler-*.log'}", markup=False)
    if not runs_here:
        console.print(f"Next: glmforge jobs follow {name}", markup=False)
