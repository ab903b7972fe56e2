"""`glmforge cluster setup`."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    from glmforge_ops.setup.setup import Plan, Said, Setup


class KindName(StrEnum):
    """As `glmforge_ops.setup.wanted.Kind`."""

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
    master_addr: Annotated[str | None, typer.Option(help="Where ranks meet.", show_default="the first node")] = None,
    master_port: Annotated[int | None, typer.Option(min=1, max=65535, help="As in cluster.yaml.")] = None,
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
    force: Annotated[bool, typer.Option("--force", help="Replace files that somebody else wrote or changed.")] = False,
) -> None:
    """Set up nodes: directories, hostfile, ssh keys, launch and job scripts. Run twice, it changes nothing.

    Exit status 0: all is set up, or would be. 1: something stands in the way; it is named, and the rest is done.

    Examples:

        glmforge cluster setup --type slurm --partition gpu --nodes 128 --nvme-path /local/nvme --dry-run

        glmforge cluster setup --type manual --hostfile hosts.txt --accept-host-keys fingerprints.txt
    """
    from glmforge.config.cluster import SlurmConfig
    from glmforge_ops.hosts.machines import machines_of
    from glmforge_ops.setup.known_hosts import read_accepted
    from glmforge_ops.setup.setup import Options, Said, Setup, describe
    from glmforge_ops.setup.wanted import Wanted

    _refuse_together(offline, dry_run, accept_host_keys, confirm_host_keys)
    cluster = read_cluster(config, hosts, hostfile, partition, ssh)
    given: dict[str, object] = {"gpus_per_node": gpus_per_node, "master_addr": master_addr, "master_port": master_port}
    given["local_path"] = nvme_path
    changes = {name: value for name, value in given.items() if value is not None}
    if kind is KindName.slurm and cluster.nodes is None and cluster.hostfile is None and cluster.slurm is None:
        changes["slurm"] = SlurmConfig()
    cluster = cluster.model_copy(update=changes)
    accepted = {} if accept_host_keys is None else read_accepted(accept_host_keys)
    wanted = Wanted.of(kind.value, cluster, machines_of(cluster), out, nodes)
    work = Setup(wanted, Options(offline, accepted, _confirm if confirm_host_keys else None, force))
    with _progress(work, shown=not confirm_host_keys):
        plan = work.plan()
    for line in describe(plan, wanted):
        typer.echo(line)
    said = Said()
    if not dry_run:
        with _progress(work):
            said = work.carry_out(plan)
    num_errors = _show(plan, said, dry_run)
    own = wanted.ssh_directory / "config"
    if plan.count and not (dry_run or num_errors) and own.exists():
        call = shlex.join(["ssh", "-F", str(own)])
        typer.echo(escaped(f"Next: glmforge cluster check --ssh {shlex.quote(call)}, or ssh.command in cluster.yaml"))
    raise typer.Exit(1 if num_errors else 0)


def _refuse_together(offline: bool, dry_run: bool, accept_host_keys: Path | None, confirm_host_keys: bool) -> None:
    """Options that do not go together."""
    if offline and not dry_run:
        raise typer.BadParameter("--offline is for --dry-run only: setup must ask the nodes")
    if accept_host_keys is not None and confirm_host_keys:
        raise typer.BadParameter("give --accept-host-keys or --confirm-host-keys, not both")
    if confirm_host_keys and not sys.stdin.isatty():
        raise typer.BadParameter("--confirm-host-keys needs a terminal; give --accept-host-keys FILE")


@contextmanager
def _progress(work: "Setup", shown: bool = True) -> Iterator[None]:
    from glmforge.observe.work_progress import work_progress

    if not shown:  # a question needs the terminal
        yield
        return
    with work_progress("nodes", 64) as show:
        work.progress = lambda what, done, total: show(done, f"{what}: {done} of {total}")
        yield


def _show(plan: "Plan", said: "Said", dry_run: bool) -> int:
    """What was found, what stands in the way, and what was changed; returns how many errors there are."""
    found = {kind: list(dict.fromkeys([*plan.said.of(kind), *said.of(kind)])) for kind in ("note", "warning", "error")}
    for kind, lines in found.items():
        for line in lines:
            typer.echo(f"  {line}" if kind == "note" else f"  {kind}: {line}")
    if plan.trust.new:
        typer.echo("Host keys that nobody has accepted; compare them with what the machines say of themselves:")
        for key in plan.trust.new:
            typer.echo(f"  {key.shown}")
    count = plan.count if dry_run else said.count("change", "made")
    done = f"{counted(count, 'change')} {'to be made' if dry_run else 'made'}" if count else "nothing to change"
    errors = len(found["error"])
    typer.echo(f"{done}; {counted(errors, 'error')}" if errors else done)
    return errors


def _confirm(keys: "Sequence[HostKey]") -> bool:
    for key in keys:
        typer.echo(f"  {key.shown}")
    return typer.prompt("Are these the machines' own fingerprints? yes or no", default="no") == "yes"
