"""`glmforge cluster clean`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge_ops.cli.cluster.machines import HostfileOption, HostsOption, PartitionOption, SshOption, read_cluster

if TYPE_CHECKING:
    from glmforge_ops.storage.clean import Cleaned

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def clean(
    path: Annotated[
        list[Path] | None,
        typer.Option(help="checkpoint.local_dir, data.cache_dir; may be repeated. None: local_path of --config."),
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
    """Remove from nodes what your own ended jobs left there: partial files, shared memory, scratch directories.

    Only if its process has certainly ended; what is in doubt is listed and stays. Exit status 1 if a node cannot be
    reached.

    Example:

        glmforge cluster clean --path /local/nvme --hostfile hosts.txt --dry-run
    """
    from glmforge.errors import HostError
    from glmforge_ops.hosts.machines import fanout_of, machines_of
    from glmforge_ops.storage.clean import Order
    from glmforge_ops.storage.clean import clean as clean_nodes

    cluster = read_cluster(config, hosts, hostfile, partition, ssh)
    paths = path or ([cluster.local_path] if cluster.local_path is not None else [])
    if any(not each.is_absolute() for each in paths):
        raise HostError("--path: give absolute paths, as the nodes have them")
    order = Order(paths=paths, older_than_s=_seconds(older_than), dry_run=dry_run, processes=processes)
    found = clean_nodes([machine.name for machine in machines_of(cluster)], order, fanout_of(cluster))
    if as_json:
        typer.echo(json.dumps([each.model_dump() for each in found], indent=1))
    else:
        _print(found, dry_run)
    raise typer.Exit(1 if any(each.problem for each in found) else 0)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if found is None:
        raise typer.BadParameter(f"--older-than {text}: write 90s, 30m, 12h or 7d")
    return float(int(found[1]) * _SECONDS[found[2]])


def _print(nodes: "list[Cleaned]", dry_run: bool) -> None:
    """Each line once, before it the nodes that it is true of; then the sum."""
    from glmforge.files import shown
    from glmforge.observe.units import counted, format_bytes
    from glmforge_ops.hosts.fold import fold_hosts

    hosts_of: dict[str, list[str]] = {}
    for node in nodes:
        if node.problem:
            typer.echo(f"glmforge: {node.host}: {shown(node.problem)}", err=True)
        for line in _lines(node, dry_run):
            hosts_of.setdefault(line, []).append(node.host)
    for line, hosts in hosts_of.items():
        typer.echo(f"{fold_hosts(hosts)}: {line}")
    removed = [each for node in nodes for each in node.removed]
    size = format_bytes(sum(each.bytes for each in removed))
    did = "would be removed" if dry_run else "removed"
    typer.echo(f"{counted(len(removed), 'item')}, {size}, {did} on {counted(len(nodes), 'node')}")


def _lines(node: "Cleaned", dry_run: bool) -> Iterator[str]:
    from glmforge.files import shown
    from glmforge.observe.units import format_bytes

    did = "would remove" if dry_run else "removed"
    for each in node.removed:
        yield f"{did} {shown(each.kind)} {shown(each.path)} ({format_bytes(each.bytes)}; {shown(each.why)})"
    for kept in node.kept:
        yield f"kept {shown(kept.path)}: {shown(kept.why)}"
    for process in node.processes:
        state = {True: "ended", False: "does not end", None: "stale"}[process.ended]
        yield f"{state}: process {process.pid}, {shown(process.what)} of {shown(process.run)} ({shown(process.why)})"
