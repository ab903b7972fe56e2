"""`glmforge cluster dev`: real Slurm on this machine, with nodes that can fail."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge_ops.dev import DevCluster

app = typer.Typer(no_args_is_help=True, help="Development cluster: Slurm on this machine, each node a host.")

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the cluster; several can be up at once.", show_default="~/.cache/glmforge/dev/default"
    ),
]
NodeArgument = Annotated[str, typer.Argument(help="Name of a node, such as node2.")]


@app.command("up")
def up(
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 3,
    gpus: Annotated[int, typer.Option(help="Fake GPUs per node.")] = 8,
    cpus: Annotated[int, typer.Option(help="CPUs that each node reports.")] = 8,
    slurm: Annotated[bool, typer.Option("--slurm/--no-slurm", help="Without Slurm: hosts with ssh servers.")] = True,
    bare: Annotated[
        bool, typer.Option("--bare", help="Nodes that are still to be set up: empty homes, no keys.")
    ] = False,
    directory: DirectoryOption = None,
) -> None:
    """Start a cluster; it runs until 'down'.

    As root every node is a host of its own, with name, address, ssh server, local disk and a link that can be cut;
    missing packages are installed. As another user, Slurm's daemons run on the loopback.

    Examples:

        glmforge cluster dev up --nodes 3 --gpus 8

        glmforge cluster dev up --nodes 8 --no-slurm --directory hosts
    """
    from glmforge_ops.dev import DevCluster, DevOptions

    options = DevOptions(nodes=nodes, gpus=gpus, cpus=cpus, slurm=slurm, bare=bare)
    where = _directory(directory)
    cluster = DevCluster.start(where, options, say=lambda line: typer.echo(line, err=True))
    cluster.detach()
    first, last = cluster.nodes[0], cluster.nodes[-1]
    typer.echo(f"{cluster.directory}: {f'{first} is' if first == last else f'{first} to {last} are'} up")
    if slurm:
        typer.echo(f"export SLURM_CONF={cluster.places.slurm_conf}")
    if not cluster.state.why_plain:
        typer.echo(f"{' '.join(cluster.ssh_command)} head")
        return
    typer.echo(
        f"this is a plain cluster ({cluster.state.why_plain}): nodes share this machine's name, address and disk,"
    )
    typer.echo("and have no ssh servers and no links")
    if gpus and not (cluster.places / "gpus/nvidia0").is_char_device():
        typer.echo("GPUs are plain files: Slurm counts them, but does not set CUDA_VISIBLE_DEVICES")


@app.command("down")
def down(directory: DirectoryOption = None) -> None:
    """End a cluster: its processes, interfaces, mounts and files.

    Example:

        glmforge cluster dev down
    """
    from glmforge_ops.dev import DevCluster

    where = _directory(directory)
    DevCluster.end(where)
    typer.echo(f"{where}: cluster ended")


@app.command("status")
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    directory: DirectoryOption = None,
) -> None:
    """Show the hosts of a cluster.

    Example:

        glmforge cluster dev status
    """
    cluster = _open(directory)
    slurm = cluster.slurm_states()
    hosts = [
        {
            "host": host,
            "state": record.state,
            "address": record.address,
            "slurm": slurm.get(host, ""),
            "ended_daemons": cluster.ended_daemons(host),
        }
        for host, record in cluster.state.hosts.items()
    ]
    if as_json:
        typer.echo(json.dumps({"directory": str(cluster.directory), "mode": cluster.state.mode, "hosts": hosts}))
        return
    words = ("host", "state", "address", "slurm", "ended daemons")
    rows = table(*words, in_words=words)
    for host in hosts:
        *cells, ended = host.values()
        rows.add_row(*map(str, cells), ", ".join(ended))
    print_table("", rows, Console())


@app.command("fail")
def fail(node: NodeArgument, directory: DirectoryOption = None) -> None:
    """Power a node off: all its processes end at once.

    Example:

        glmforge cluster dev fail node2
    """
    _open(directory).fail(node)
    typer.echo(f"{node}: failed; bring it back: {_heal(node, directory)}")


@app.command("cut")
def cut(node: NodeArgument, directory: DirectoryOption = None) -> None:
    """Cut the link of a node, which runs on.

    Example:

        glmforge cluster dev cut node2
    """
    _open(directory).cut(node)
    typer.echo(f"{node}: link cut; restore it: {_heal(node, directory)}")


@app.command("heal")
def heal(node: NodeArgument, directory: DirectoryOption = None) -> None:
    """Bring back a node that failed or was cut off.

    Example:

        glmforge cluster dev heal node2
    """
    _open(directory).heal(node)
    typer.echo(f"{node}: is up")


def _heal(node: str, directory: Path | None) -> str:
    """The command that does so, of the same cluster."""
    where = "" if directory is None else f" --directory {shlex.quote(str(directory))}"
    return f"glmforge cluster dev heal {node}{where}"


def _directory(directory: Path | None) -> Path:
    from glmforge.files import absolute
    from glmforge_ops.dev.state import default_directory

    return default_directory() if directory is None else absolute(directory)


def _open(directory: Path | None) -> "DevCluster":
    from glmforge_ops.dev import DevCluster

    return DevCluster.open(_directory(directory))
