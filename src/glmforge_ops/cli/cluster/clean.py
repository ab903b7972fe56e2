"""`glmforge cluster clean`."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge_ops.cli.cluster.machines import HostfileOption, HostsOption, PartitionOption, SshOption, read_cluster

if TYPE_CHECKING:
    from glmforge_ops.storage.clean import Cleaned, LocalRun

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def clean(
    path: Annotated[
        list[Path] | None,
        typer.Option(help="checkpoint.local_dir, data.cache_dir; may be repeated. None: local_path of --config."),
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(help="A run that has ended: also its local checkpoints that shared storage has, too."),
    ] = None,
    older_than: Annotated[str, typer.Option(help="Since the last change: 90s, 30m, 12h, 7d.")] = "1h",
    processes: Annotated[bool, typer.Option("--processes", help="End stale processes, not only list them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    config: Annotated[Path | None, typer.Option(help="cluster.yaml.")] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    partition: PartitionOption = None,
    ssh: SshOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything found, as JSON.")] = False,
) -> None:
    """Remove from nodes what your own ended jobs left there: partial files, shared memory, local checkpoints.

    Only what is known to be of a process of ours that is certainly gone; what is in doubt is listed and stays. Exit
    status 1 if a node could not be asked.

    Example:

        glmforge cluster clean --path /local/nvme --hostfile hosts.txt --dry-run
    """
    from glmforge.errors import HostError
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.hosts.machines import fanout_of, machines_of
    from glmforge_ops.storage.clean import Order
    from glmforge_ops.storage.clean import clean as clean_nodes

    cluster = read_cluster(config, hosts, hostfile, partition, ssh)
    paths = path or ([cluster.local_path] if cluster.local_path is not None else [])
    if any(not each.is_absolute() for each in paths):
        raise HostError("--path: give absolute paths, as the nodes have them")
    names = [machine.name for machine in machines_of(cluster)]
    with ExitStack() as stack, work_progress("cleaning", 16) as show:
        runs = [_hold(each, stack) for each in run or ()]
        order = Order(paths, runs, _seconds(older_than), dry_run, processes)
        asked: list[Cleaned] = []

        def count(cleaned: "Cleaned") -> None:
            asked.append(cleaned)
            show(len(asked), f"{len(asked)} of {len(names)} nodes have answered")

        found = clean_nodes(names, order, fanout_of(cluster), on_answer=count)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found.values()], indent=1))
    else:
        _tell(list(found.values()), dry_run)
        total = sum(each.num_bytes for each in found.values())
        _sum_up(sum(len(each.removed) for each in found.values()), total, len(found), dry_run)
    raise typer.Exit(1 if any(each.problem for each in found.values()) else 0)


def _hold(run: Path, stack: ExitStack) -> "LocalRun":
    """The run's place on nodes' disks; its lock is held until the command ends, so that no job of it starts."""
    from glmforge.checkpoint.format.store import latest_checkpoint, step_of
    from glmforge.checkpoint.node_local.parts_of_ranks import local_root
    from glmforge.config.load import load_config
    from glmforge.errors import CheckpointError
    from glmforge.observe.run import RunDirectory
    from glmforge.runtime.lease import Lease
    from glmforge_ops.storage.clean import LocalRun

    directory = RunDirectory(run)
    if not directory.config.is_file():
        raise CheckpointError(f"{run}: is not the directory of a run (no config.yaml)")
    settings = load_config(run)
    if settings.checkpoint.local_dir is None:
        raise CheckpointError(f"{run}: its config.yaml names no checkpoint.local_dir; leave out --run")
    stack.enter_context(Lease(run, "glmforge cluster clean"))
    newest = latest_checkpoint(directory.checkpoints)
    if newest is None:
        raise CheckpointError(
            f"{run}: shared storage has no whole checkpoint of it; its local ones may be all there is"
        )
    return LocalRun(local_root(settings.checkpoint.local_dir, settings.name).absolute(), step_of(newest))


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if found is None:
        raise typer.BadParameter(f"--older-than {text}: write 90s, 30m, 12h or 7d")
    return float(int(found[1]) * _SECONDS[found[2]])


def _tell(nodes: "list[Cleaned]", dry_run: bool) -> None:
    """Each line once, before it the nodes that say it."""
    from glmforge.files import shown
    from glmforge_ops.hosts.fold import fold_hosts

    for node in nodes:
        if node.problem:
            typer.echo(f"glmforge: {node.host}: {shown(node.problem)}", err=True)
    said: dict[str, list[str]] = {}
    for node in nodes:
        for line in _lines(node, dry_run):
            said.setdefault(line, []).append(node.host)
    for line, hosts in said.items():
        typer.echo(f"{fold_hosts(hosts)}: {line}")


def _lines(node: "Cleaned", dry_run: bool) -> Iterator[str]:
    from glmforge.files import shown
    from glmforge.observe.units import format_bytes

    did = "would remove" if dry_run else "removed"
    for each in node.removed:
        yield f"{did} {each['kind']} {shown(each['path'])} ({format_bytes(each['bytes'])}; {shown(each['why'])})"
    for each in node.kept:
        yield f"kept {shown(each['path'])}: {shown(each['why'])}"
    for each in node.processes:
        ended = {True: "ended", False: "does not end"}.get(each.get("ended"), "stale")  # type: ignore[arg-type]
        yield f"{ended}: process {each['pid']}, {shown(each['what'])} of {shown(each['run'])} ({shown(each['why'])})"


def _sum_up(number: int, num_bytes: int, num_nodes: int, dry_run: bool) -> None:
    from glmforge.observe.units import counted, format_bytes

    did = "would be removed" if dry_run else "removed"
    typer.echo(f"{counted(number, 'item')}, {format_bytes(num_bytes)}, {did} on {counted(num_nodes, 'node')}")
