"""`glmforge cluster setup`."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
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
    from glmforge.config.cluster import ClusterConfig
    from glmforge_ops.setup.known_hosts import HostKey
    from glmforge_ops.setup.plan import Plan, Problem, Step
    from glmforge_ops.setup.setup import Options
    from glmforge_ops.setup.wanted import Wanted


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
    out: Annotated[Path, typer.Option(help="Directory for scripts, keys and the journal.")] = Path("cluster"),
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
    undo: Annotated[bool, typer.Option("--undo", help="Take back everything that setup has changed.")] = False,
) -> None:
    """Set up nodes: directories, hostfile, ssh keys, launch and job scripts. Run twice, it changes nothing.

    Exit status 0: all is set up, or would be. 1: something stands in the way; it is named, and the rest is done.

    Examples:

        glmforge cluster setup --type slurm --partition gpu --nodes 128 --nvme-path /local/nvme --dry-run

        glmforge cluster setup --type manual --hostfile hosts.txt --accept-host-keys fingerprints.txt

        glmforge cluster setup --hostfile hosts.txt --undo
    """
    from glmforge_ops.setup.known_hosts import read_accepted
    from glmforge_ops.setup.setup import Options

    _refuse_together(offline, dry_run, accept_host_keys, confirm_host_keys)
    cluster = read_cluster(config, hosts, hostfile, partition, ssh)
    cluster = _with_options(cluster, gpus_per_node, master_addr, master_port, nvme_path)
    if undo:
        _undo(cluster, out, dry_run)
        return
    accepted = {} if accept_host_keys is None else read_accepted(accept_host_keys)
    confirm = _confirm if confirm_host_keys else None
    options = Options(dry_run=dry_run, offline=offline, accepted=accepted, confirm=confirm, force=force)
    wanted = _wanted(kind, cluster, out, nodes)
    plan, problems, tests = _set_up(wanted, options)
    _show(plan, tests, problems)
    found = [*plan.problems, *problems, *(tests.problems if tests else [])]
    typer.echo(_summary(plan, found, dry_run))
    own = wanted.ssh_directory / "config"
    if not dry_run and plan.changes and own.exists() and not any(problem.is_error for problem in found):
        call = shlex.join(["ssh", "-F", str(own)])
        typer.echo(escaped(f"Next: glmforge cluster check --ssh {shlex.quote(call)}, or ssh.command in cluster.yaml"))
    raise typer.Exit(1 if any(problem.is_error for problem in found) else 0)


def _refuse_together(offline: bool, dry_run: bool, accept_host_keys: Path | None, confirm_host_keys: bool) -> None:
    """Options that do not go together."""
    if offline and not dry_run:
        raise typer.BadParameter("--offline is for --dry-run only: setup must ask the nodes")
    if accept_host_keys is not None and confirm_host_keys:
        raise typer.BadParameter("give --accept-host-keys or --confirm-host-keys, not both")
    if confirm_host_keys and not sys.stdin.isatty():
        raise typer.BadParameter("--confirm-host-keys needs a terminal; give --accept-host-keys FILE")


def _with_options(
    cluster: "ClusterConfig", gpus: int | None, address: str | None, port: int | None, nvme_path: Path | None
) -> "ClusterConfig":
    given = {"gpus_per_node": gpus, "master_addr": address, "master_port": port, "local_path": nvme_path}
    return cluster.model_copy(update={name: value for name, value in given.items() if value is not None})


def _wanted(kind: KindName, cluster: "ClusterConfig", out: Path, nodes: int | None) -> "Wanted":
    from glmforge.config.cluster import SlurmConfig
    from glmforge_ops.hosts.machines import machines_of
    from glmforge_ops.setup.wanted import Wanted

    if kind is KindName.slurm and cluster.nodes is None and cluster.hostfile is None and cluster.slurm is None:
        cluster = cluster.model_copy(update={"slurm": SlurmConfig()})
    return Wanted.of(kind.value, cluster, machines_of(cluster), out, nodes)


def _set_up(wanted: "Wanted", options: "Options") -> "tuple[Plan, list[Problem], Step | None]":
    """The plan; unless that is all that is wanted, carried out, with what went wrong and the tests after it."""
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.setup.journal import Journal
    from glmforge_ops.setup.setup import Setup

    waits = work_progress("nodes", 64) if options.confirm is None else nullcontext(_show_nothing)
    with waits as show:
        work = Setup(wanted, options, lambda what, done, total: show(done, f"{what}: {done} of {total}"))
        if options.dry_run:
            return work.plan(Journal(wanted.out)), [], None
        with Journal.opened(wanted.out) as journal:
            return work.run(journal)


def _undo(cluster: "ClusterConfig", out: Path, dry_run: bool) -> None:
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.setup.journal import Journal
    from glmforge_ops.setup.setup import undo_setup

    if dry_run:
        for entry in Journal(out).open_entries:
            where = f"{entry.host}: " if entry.host else ""
            typer.echo(escaped(f"{where}take back {entry.change['kind']} {entry.change['path']}"))
        return
    with work_progress("nodes", 64) as show:
        undone = undo_setup(cluster, out, lambda done, total: show(done, f"undoing: {done} of {total}"))
    for line in undone.refused:
        typer.echo(f"  error: {escaped(line)}")
    for failure in undone.failures:
        typer.echo(f"  error: {failure.host}: {escaped(failure.reason)}; {failure.mend}, then --undo again")
    if undone.kept:
        typer.echo(f"kept until then: {', '.join(map(escaped, undone.kept))}")
    typer.echo(f"{counted(undone.num_undone, 'change')} taken back" + ("" if undone.is_whole else "; not all"))
    raise typer.Exit(0 if undone.is_whole else 1)


def _show_nothing(done: float, told: str) -> None:
    pass


def _show(plan: "Plan", tests: "Step | None", problems: "Sequence[Problem]") -> None:
    """Each step with its changes in full and what stands in the way; then what went wrong."""
    from glmforge_ops.setup.change import describe

    for number, planned in enumerate(plan.steps, start=1):
        step = tests if tests is not None and planned.title == tests.title else planned
        nothing = "" if step.changes or step.problems or step.notes else ": nothing to change"
        typer.echo(f"{number}. {step.title}{nothing}")
        for line in [*step.notes, *describe(step.changes)]:
            typer.echo(f"  {escaped(line)}")
        for problem in step.problems:
            typer.echo(f"  {'error' if problem.is_error else 'warning'}: {escaped(str(problem))}")
    if plan.new_keys:
        typer.echo("\nHost keys that nobody has accepted; compare them with what the machines say of themselves:")
        for key in plan.new_keys:
            typer.echo(f"  {key.shown}")
    for problem in problems:
        typer.echo(f"  error: {escaped(str(problem))}")


def _summary(plan: "Plan", problems: "Sequence[Problem]", dry_run: bool) -> str:
    count = len(plan.changes)
    errors = sum(problem.is_error for problem in problems)
    done = "to be made" if dry_run else "made"
    said = f"{counted(count, 'change')} {done}" if count else "nothing to change"
    return f"{said}; {counted(errors, 'error')}" if errors else said


def _confirm(keys: "Sequence[HostKey]") -> bool:
    for key in keys:
        typer.echo(f"  {key.shown}")
    return typer.prompt("Are these the machines' own fingerprints? yes or no", default="no") == "yes"
