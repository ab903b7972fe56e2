"""`glmforge cluster setup`."""

import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge.files import escaped
from glmforge.observe.units import counted
from glmforge_ops.cli.cluster.machines import (
    ConfigArgument,
    HostfileOption,
    HostsOption,
    PartitionOption,
    SshOption,
    read_cluster,
)

if TYPE_CHECKING:
    from glmforge_ops.setup.known_hosts import HostKey
    from glmforge_ops.setup.setup import Line, Plan


class KindName(StrEnum):
    """As `glmforge_ops.setup.files.Kind`."""

    slurm = "slurm"
    mpi = "mpi"
    manual = "manual"


def setup(
    config: ConfigArgument = None,
    kind: Annotated[
        KindName, typer.Option("--type", help="What starts jobs: Slurm, mpirun, or torchrun through ssh.")
    ] = KindName.slurm,
    nodes: Annotated[int | None, typer.Option(min=1, help="How many there must be; anything else is an error.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=0, max=64, help="As in cluster.yaml.")] = None,
    nvme_path: Annotated[Path | None, typer.Option(help="Where each node's own fast disk is mounted.")] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    partition: PartitionOption = None,
    ssh: SshOption = None,
    out: Annotated[Path, typer.Option(help="Directory for scripts and keys.")] = Path("cluster"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show every change in full, and make none.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="With --dry-run: connect to nothing, as if nodes had nothing.")
    ] = False,
    accept_host_keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines of a host and the fingerprint that its key must have.")
    ] = None,
    confirm_host_keys: Annotated[
        bool, typer.Option("--confirm-host-keys", help="Show new host keys and ask whether they are right.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files that differ.")] = False,
) -> None:
    """Set up nodes: directories, hostfile, ssh keys, launch and job scripts. Run again, it changes nothing.

    Exit status 0: all is set up, or would be. 1: there were errors; the rest is done.

    Examples:

        glmforge cluster setup --type slurm --partition gpu --nodes 128 --nvme-path /local/nvme --dry-run

        glmforge cluster setup --type manual --hostfile hosts.txt --accept-host-keys fingerprints.txt
    """
    from glmforge.config.cluster import SlurmConfig
    from glmforge_ops.hosts.machines import machines_of
    from glmforge_ops.setup.files import Wanted
    from glmforge_ops.setup.known_hosts import read_accepted
    from glmforge_ops.setup.setup import carry_out, describe, make_plan

    if offline and not dry_run:
        raise typer.BadParameter("--offline is for --dry-run only: setup must ask the nodes")
    if accept_host_keys is not None and confirm_host_keys:
        raise typer.BadParameter("give --accept-host-keys or --confirm-host-keys, not both")
    if confirm_host_keys and not sys.stdin.isatty():
        raise typer.BadParameter("--confirm-host-keys needs a terminal; give --accept-host-keys FILE")
    cluster = read_cluster(config, hosts, hostfile, partition, ssh, gpus_per_node=gpus_per_node, local_path=nvme_path)
    if kind is KindName.slurm and cluster.nodes is None and cluster.hostfile is None and cluster.slurm is None:
        cluster = cluster.model_copy(update={"slurm": SlurmConfig()})
    wanted = Wanted.of(kind.value, cluster, machines_of(cluster), out, nodes)
    accepted = {} if accept_host_keys is None else read_accepted(accept_host_keys)
    confirm = _confirm if confirm_host_keys else None
    plan = make_plan(wanted, offline=offline, accepted=accepted, confirm=confirm, force=force)
    for line in describe(plan):
        typer.echo(line)
    more, made = ([], plan.count) if dry_run else carry_out(plan)
    errors = _show(plan, more, f"{counted(made, 'change')} {'to be made' if dry_run else 'made'}" if made else "")
    if made and not (dry_run or errors) and (wanted.ssh_directory / "config").exists():
        call = shlex.join(["ssh", "-F", str(wanted.ssh_directory / "config")])
        typer.echo(escaped(f"Next: glmforge cluster check --ssh {shlex.quote(call)}, or ssh.command in cluster.yaml"))
    raise typer.Exit(1 if errors else 0)


def _show(plan: "Plan", more: "Sequence[Line]", changes: str) -> int:
    """Print notes, warnings, errors and new host keys, and last what was changed; the number of errors."""
    from glmforge_ops.setup.setup import texts

    lines = [*plan.lines, *more]
    for of_kind, head in (("note", ""), ("warning", "warning: "), ("error", "error: ")):
        for line in texts(lines, of_kind):
            typer.echo(f"  {head}{line}")
    if plan.trust.new:
        typer.echo("New host keys; compare them with what the machines themselves say:")
        for key in plan.trust.new:
            typer.echo(f"  {key.shown}")
    done, errors = changes or "nothing to change", len(texts(lines, "error"))
    typer.echo(f"{done}; {counted(errors, 'error')}" if errors else done)
    return errors


def _confirm(keys: "Sequence[HostKey]") -> bool:
    for key in keys:
        typer.echo(f"  {key.shown}")
    return typer.prompt("Are these the machines' own fingerprints? yes or no", default="no") == "yes"
