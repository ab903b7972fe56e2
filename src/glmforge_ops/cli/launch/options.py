"""How a job is launched: options that every command which launches one has, and what they mean together."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from glmforge.config.launch import LaunchConfig

_SIZE, _WHERE, _QUEUE, _HOW = "Size", "Where", "Scheduler", "Supervision"


class LauncherName(StrEnum):
    """As `glmforge.config.launch.Launcher`."""

    local = "local"
    ssh = "ssh"
    slurm = "slurm"
    pbs = "pbs"
    mpi = "mpi"


class StarterName(StrEnum):
    """As `glmforge.config.launch.Starter`."""

    local = "local"
    ssh = "ssh"
    srun = "srun"
    torchrun = "torchrun"
    mpirun = "mpirun"


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Fields of `LaunchConfig`; None: not given."""

    nodes: Annotated[int | None, typer.Option(help="How many nodes.", rich_help_panel=_SIZE)] = None
    gpus_per_node: Annotated[int | None, typer.Option(help="A rank for each.", rich_help_panel=_SIZE)] = None
    ranks_per_node: Annotated[
        int | None, typer.Option(help="Default: one for each GPU, or one.", rich_help_panel=_SIZE)
    ] = None
    cpus_per_task: Annotated[int | None, typer.Option(help="CPUs of each rank.", rich_help_panel=_SIZE)] = None
    mem: Annotated[str | None, typer.Option(help="Memory of each node: 64G.", rich_help_panel=_SIZE)] = None
    time: Annotated[
        str | None, typer.Option(help="Limit, as Slurm writes it: 24:00:00, 2-00:00:00.", rich_help_panel=_SIZE)
    ] = None
    exclusive: Annotated[bool | None, typer.Option("--exclusive", help="Whole nodes.", rich_help_panel=_SIZE)] = None
    launcher: Annotated[
        LauncherName | None,
        typer.Option(
            help="Default: ssh if hosts are given; else Slurm or PBS, whichever answers; else local.",
            rich_help_panel=_WHERE,
        ),
    ] = None
    starter: Annotated[StarterName | None, typer.Option(help="What starts the ranks.", rich_help_panel=_WHERE)] = None
    hosts: Annotated[
        str | None, typer.Option(help="For ssh and mpi: 'node[001-008],node12'.", rich_help_panel=_WHERE)
    ] = None
    hostfile: Annotated[
        Path | None, typer.Option(help="For ssh and mpi: one host per line.", rich_help_panel=_WHERE)
    ] = None
    cluster: Annotated[
        Path | None, typer.Option(help="cluster.yaml: hosts, ssh, interfaces.", rich_help_panel=_WHERE)
    ] = None
    interface: Annotated[str | None, typer.Option(help="Between nodes, such as eth0.", rich_help_panel=_WHERE)] = None
    port: Annotated[int | None, typer.Option(help="At which ranks meet.", rich_help_panel=_WHERE)] = None
    container: Annotated[str | None, typer.Option(help="Image in which every rank runs.", rich_help_panel=_WHERE)] = (
        None
    )
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="A variable of every rank; may be repeated. NAME alone, and what looks like a secret, is handed on "
            "from the environment, and its value is in none of the job's files.",
            rich_help_panel=_WHERE,
        ),
    ] = None
    partition: Annotated[str | None, typer.Option(help="The queue, under PBS.", rich_help_panel=_QUEUE)] = None
    qos: Annotated[str | None, typer.Option(help="Quality of service.", rich_help_panel=_QUEUE)] = None
    account: Annotated[str | None, typer.Option(help="That is charged.", rich_help_panel=_QUEUE)] = None
    constraint: Annotated[str | None, typer.Option(help="Features of nodes.", rich_help_panel=_QUEUE)] = None
    exclude: Annotated[str | None, typer.Option(help="Nodes not to use: 'node[003-004]'.", rich_help_panel=_QUEUE)] = (
        None
    )
    array: Annotated[str | None, typer.Option(help="Tasks: 0-7, or 0-99%8.", rich_help_panel=_QUEUE)] = None
    dependency: Annotated[str | None, typer.Option(help="Such as afterok:1234.", rich_help_panel=_QUEUE)] = None
    signal: Annotated[str | None, typer.Option(help="Warning before the end: USR1@120.", rich_help_panel=_QUEUE)] = None
    requeue: Annotated[
        bool | None,
        typer.Option("--requeue/--no-requeue", help="Under its number, when it gives way.", rich_help_panel=_QUEUE),
    ] = None
    supervise: Annotated[
        bool | None,
        typer.Option("--supervise/--no-supervise", help="Restart, and replace nodes that fail.", rich_help_panel=_HOW),
    ] = None
    min_nodes: Annotated[int | None, typer.Option(help="Go on with so few.", rich_help_panel=_HOW)] = None
    max_nodes: Annotated[int | None, typer.Option(help="Use so many, if there are.", rich_help_panel=_HOW)] = None
    spare_nodes: Annotated[int | None, typer.Option(help="Beside --nodes.", rich_help_panel=_HOW)] = None
    options: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All of these as YAML; the command line wins.", rich_help_panel=_HOW),
    ] = None


_SUPERVISOR = ("min_nodes", "max_nodes", "spare_nodes")
_AS_THEY_ARE = (
    "nodes",
    "gpus_per_node",
    "ranks_per_node",
    "cpus_per_task",
    "mem",
    "time",
    "exclusive",
    "interface",
    "port",
    "container",
    "partition",
    "qos",
    "account",
    "constraint",
    "array",
    "dependency",
    "signal",
    "requeue",
    "supervise",
)


def read_launch(options: LaunchOptions) -> "LaunchConfig":
    """The options of the file and of the command line, with the launcher found. Raises `GlmforgeError`."""
    from glmforge.runtime.hostfile import parse_hosts
    from glmforge_ops.jobs.submit.new_job import read_options

    given: dict[str, Any] = {name: getattr(options, name) for name in _AS_THEY_ARE}
    given["launcher"] = options.launcher and options.launcher.value
    given["starter"] = options.starter and options.starter.value
    given["hosts"] = None if options.hosts is None else parse_hosts(options.hosts)
    given["exclude"] = None if options.exclude is None else parse_hosts(options.exclude, "--exclude")
    given["env"] = None if options.env is None else dict(map(_variable, options.env))
    given["hostfile"] = options.hostfile and str(options.hostfile.absolute())
    given["cluster"] = options.cluster and str(options.cluster.absolute())
    given["supervisor"] = {name: value for name in _SUPERVISOR if (value := getattr(options, name)) is not None} or None
    config = read_options(options.options, {name: value for name, value in given.items() if value is not None})
    if options.supervise and not config.supervise:
        raise typer.BadParameter(f"--supervise: not with starter {config.chosen_starter}; choose ssh, srun or local")
    return config


def _variable(text: str) -> tuple[str, str]:
    from glmforge.config.secrets import HIDDEN

    name, equals, value = text.partition("=")
    return name, value if equals else HIDDEN
