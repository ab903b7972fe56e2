"""`glmforge cluster dev`: real Slurm on this machine, with nodes that can fail."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.signature import takes
from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge_ops.dev import DevCluster

app = typer.Typer(no_args_is_help=True, help="A development cluster: Slurm on this machine, each node a host.")

NameOption = Annotated[str, typer.Option(help="Which cluster; several can be up at once.")]
DirectoryOption = Annotated[
    Path | None, typer.Option(help="Where all of it lies.", show_default="~/.cache/glmforge/dev/NAME")
]
NodeArgument = Annotated[str, typer.Argument(help="Name of a node, such as node2.")]


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What the cluster is to be like; see `DevOptions`."""

    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 3
    gpus: Annotated[int, typer.Option(help="GPUs of each node: devices that lead nowhere.")] = 8
    cpus: Annotated[int, typer.Option(help="CPUs that each node claims to have.")] = 8
    accounting: Annotated[bool, typer.Option("--accounting", help="With slurmdbd and a database: sacct answers.")] = (
        False
    )
    slurm: Annotated[bool, typer.Option("--slurm/--no-slurm", help="Or hosts with ssh servers only.")] = True
    prolog: Annotated[Path | None, typer.Option(help="Program that Slurm runs on each node before a job.")] = None
    health_check: Annotated[Path | None, typer.Option(help="Slurm's HealthCheckProgram, run on every node.")] = None
    health_check_interval: Annotated[int, typer.Option(help="Seconds from one health check to the next.")] = 10
    slurmd_timeout: Annotated[
        int, typer.Option(help="Seconds without an answer after which Slurm takes a node for down.")
    ] = 30
    link_rate: Annotated[
        str | None, typer.Option(help="Limit of every link, such as 100mbit.", show_default="none")
    ] = None
    bare: Annotated[
        bool, typer.Option("--bare", help="Nodes that know nothing of each other, to be set up: empty homes, no keys.")
    ] = False
    plain: Annotated[
        bool, typer.Option("--plain", help="Daemons on the loopback, as where namespaces are not allowed.")
    ] = False
    name: NameOption = "default"
    directory: DirectoryOption = None


@app.command("up")
@takes(UpOptions)
def up(options: UpOptions) -> None:
    """Start a cluster; it runs until 'down'.

    As root every node is a host of its own: name, address, ssh server, local disk, a link that can be cut; packages
    that are missing are installed. As another user, Slurm's daemons run on the loopback.

    Examples:

        glmforge cluster dev up --nodes 3 --gpus 8

        glmforge cluster dev up --nodes 8 --no-slurm --link-rate 100mbit --name hosts
    """
    from glmforge_ops.dev import DevCluster, DevOptions

    cluster = DevCluster.start(
        _directory(options.name, options.directory),
        DevOptions(
            nodes=options.nodes,
            gpus=options.gpus,
            cpus=options.cpus,
            slurm=options.slurm,
            accounting=options.accounting,
            prolog=options.prolog,
            health_check=options.health_check,
            health_check_interval_s=options.health_check_interval,
            slurmd_timeout_s=options.slurmd_timeout,
            link_rate=options.link_rate,
            bare=options.bare,
            mode="plain" if options.plain else None,
        ),
        say=lambda line: typer.echo(line, err=True),
    )
    cluster.detach()
    _tell(cluster, options)


@app.command("down")
def down(
    keep_logs: Annotated[bool, typer.Option("--keep-logs", help="Leave the directory of logs.")] = False,
    name: NameOption = "default",
    directory: DirectoryOption = None,
) -> None:
    """End a cluster: its processes, interfaces, mounts and files.

    Example:

        glmforge cluster dev down
    """
    from glmforge_ops.dev import DevCluster

    where = _directory(name, directory)
    left = DevCluster.end(where, keep_logs=keep_logs)
    typer.echo(f"{where}: the cluster is no more" + (f"; logs in {left}" if left else ""))


@app.command("status")
def status(
    as_json: Annotated[bool, typer.Option("--json", help="For a machine to read.")] = False,
    name: NameOption = "default",
    directory: DirectoryOption = None,
) -> None:
    """Show the nodes of a cluster, their jobs and disks.

    Examples:

        glmforge cluster dev status

        glmforge cluster dev status --json
    """
    from glmforge.observe.units import format_bytes
    from glmforge_ops.dev.status import status_of

    found = status_of(_open(name, directory))
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
        return
    words = ("host", "state", "address", "slurm", "jobs", "disk", "remarks")
    rows = table(*words, in_words=words)
    for host in found.hosts:
        remarks = [f"link at {host.rate}"] if host.rate else []
        remarks += [f"clock {host.clock_offset_s:+g} s"] if host.clock_offset_s else []
        remarks += [f"ended: {line}" for line in host.ended]
        jobs, disk = " ".join(host.jobs), format_bytes(host.disk_used_bytes)
        rows.add_row(host.name, host.state, host.address, host.slurm, jobs, disk, ", ".join(remarks))
    print_table("", rows, Console())
    for job in found.waiting:
        typer.echo(f"waits: job {job}")
    typer.echo(f"{found.directory}: {format_bytes(found.disk_free_bytes)} free")


@app.command("shell")
def shell(
    host: Annotated[str, typer.Argument(help="A node, or the head.")] = "head",
    name: NameOption = "default",
    directory: DirectoryOption = None,
) -> None:
    """Open a shell on a host: srun, sinfo and ssh know the cluster there.

    Example:

        glmforge cluster dev shell node2
    """
    cluster = _open(name, directory)
    program = os.environ.get("SHELL", "/bin/sh")
    command = cluster.command(host, program)
    environment = cluster.environment_on(host)
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)


@app.command("fail")
def fail(node: NodeArgument, name: NameOption = "default", directory: DirectoryOption = None) -> None:
    """Take the power from a node: all its processes end at once.

    Example:

        glmforge cluster dev fail node2
    """
    _open(name, directory).fail(node)
    typer.echo(f"{node}: has failed; bring it back: glmforge cluster dev heal {node}")


@app.command("cut")
def cut(node: NodeArgument, name: NameOption = "default", directory: DirectoryOption = None) -> None:
    """Cut the link of a node, which runs on.

    Example:

        glmforge cluster dev cut node2
    """
    _open(name, directory).cut(node)
    typer.echo(f"{node}: its link is cut; mend it: glmforge cluster dev heal {node}")


@app.command("heal")
def heal(node: NodeArgument, name: NameOption = "default", directory: DirectoryOption = None) -> None:
    """Bring a node back that failed or was cut off.

    Example:

        glmforge cluster dev heal node2
    """
    _open(name, directory).heal(node)
    typer.echo(f"{node}: is up")


def _directory(name: str, directory: Path | None) -> Path:
    from glmforge.files import absolute
    from glmforge_ops.dev.places import default_directory

    return default_directory(name) if directory is None else absolute(directory)


def _open(name: str, directory: Path | None) -> "DevCluster":
    from glmforge_ops.dev import DevCluster

    return DevCluster.open(_directory(name, directory))


def _tell(cluster: "DevCluster", options: UpOptions) -> None:
    """Where the cluster is, and what it lacks."""
    from glmforge_ops.dev.modes import lost

    which = "" if options.name == "default" else f" --name {options.name}"
    which = which if options.directory is None else f" --directory {cluster.directory}"
    first, last = cluster.nodes[0], cluster.nodes[-1]
    typer.echo(f"{cluster.directory}: {f'{first} is' if first == last else f'{first} to {last} are'} up")
    if options.slurm:
        typer.echo(f"export SLURM_CONF={cluster.places.slurm_conf}")
    if cluster.state.ssh:
        typer.echo(f"{' '.join(cluster.ssh_command)} {first}")
    typer.echo(f"glmforge cluster dev shell{which}")
    for line in lost(cluster.places, cluster.state):
        typer.echo(line, err=True)
