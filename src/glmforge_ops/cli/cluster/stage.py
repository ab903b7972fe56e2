"""`glmforge cluster stage`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge.cli.interruptible import interruptible
from glmforge_ops.cli.cluster.machines import HostfileOption, HostsOption, PartitionOption, SshOption, read_cluster

if TYPE_CHECKING:
    from glmforge_ops.storage.staged import Staged

_FIRST_LINE = 10**10  # bytes, before which no line of progress is written


def stage(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE...", help="Directories of shards or weights, files, shards.")
    ],
    to: Annotated[
        Path | None, typer.Option(help="A directory on each node's own disk; None: local_path of --config.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="cluster.yaml.")] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    partition: PartitionOption = None,
    ssh: SshOption = None,
    peer_ssh: Annotated[
        str | None, typer.Option(help="How nodes call each other; 'none': not at all. None: as this machine does.")
    ] = None,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also links that lead out of their source.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Compare length and time of what is there, rather than read it.")
    ] = False,
    unit_mib: Annotated[
        int,
        typer.Option(min=1, max=1024, help="MiB that are sent, checked and, after an interruption, kept at one time."),
    ] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as JSON.")] = False,
) -> None:
    """Copy shards and weights to the own disks of all nodes: shared storage is read once, nodes serve each other.

    Runs find the copies with 'data.cache_dir' and 'init_cache_dir' set to the directory. Run again, it sends what is
    lacking or damaged only. Exit status 1 if a node has not got everything; it is named, the others have.

    Example:

        glmforge cluster stage /shared/tokens/web /shared/GLM-4.5-Air --to /local/cache --hostfile hosts.txt
    """
    from glmforge.errors import HostError
    from glmforge.observe.units import format_bytes
    from glmforge.observe.work_progress import work_progress
    from glmforge.runtime.ssh import Ssh
    from glmforge_ops.hosts.machines import machines_of, ssh_of
    from glmforge_ops.storage.sources import list_sources
    from glmforge_ops.storage.stage import Staging

    cluster = read_cluster(config, hosts, hostfile, partition, ssh)
    target = to or cluster.local_path
    if target is None or not target.is_absolute():
        raise HostError(f"--to {target or ''}: give the absolute path of a directory on each node's own disk")
    reach = ssh_of(cluster)
    files = list_sources(sources, follow_links=follow_links)
    with interruptible("what has arrived is kept, run it again"), work_progress("staging", _FIRST_LINE) as show:
        done = Staging(
            files,
            target,
            ssh=reach,
            peer_ssh=None if peer_ssh == "none" else Ssh.of_command(peer_ssh) if peer_ssh is not None else reach,
            verify=not trust,
            at_once=cluster.ssh.at_once,
            unit_bytes=unit_mib << 20,
            report=lambda now: show(
                sum(node.came_bytes for node in now.nodes.values()),
                f"{format_bytes(sum(node.came_bytes for node in now.nodes.values()))} on {len(now.nodes)} nodes, "
                f"{format_bytes(now.source_bytes)} read from the source",
            ),
        ).run([machine.name for machine in machines_of(cluster)])
    if as_json:
        typer.echo(json.dumps(asdict(done), indent=1))
    else:
        _tell(done, target)
    raise typer.Exit(1 if done.failed else 0)


def _tell(done: "Staged", target: Path) -> None:
    from glmforge.observe.units import counted, format_bytes, format_duration

    for node in done.nodes.values():
        if node.problem:
            typer.echo(f"glmforge: {node.host}: {node.problem}", err=True)
        elif node.note:
            typer.echo(f"{node.host}: {node.note}")
    whole = len(done.nodes) - len(done.failed)
    relayed = f", {format_bytes(done.relayed_bytes)} through this machine" if done.relayed_bytes else ""
    typer.echo(
        f"{counted(done.num_files, 'file')}, {format_bytes(done.total_bytes)}, whole on {whole} of "
        f"{counted(len(done.nodes), 'node')} below {target}; {format_bytes(done.source_bytes)} read from the source, "
        f"{format_bytes(done.peer_bytes)} from node to node{relayed}, in {format_duration(done.seconds)}"
    )
