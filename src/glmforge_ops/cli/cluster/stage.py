"""`glmforge cluster stage`."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.interruptible import interruptible, terminable
from glmforge_ops.cli.cluster.machines import HostfileOption, HostsOption, PartitionOption, SshOption, read_cluster


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
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also links that lead out of their source.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Compare length and time of copies instead of checksums.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as JSON.")] = False,
) -> None:
    """Copy shards and weights to the own disks of all nodes, and verify them there.

    Nodes that see the source (shared storage) copy it with rsync themselves; to others it is sent from here. Within a
    Slurm allocation, without a list of nodes, sbcast distributes it. Runs find the copies with 'data.cache_dir' and
    'init_cache_dir' set to the directory. Run again, it copies only what is missing or damaged. Exit status 1 if a node
    does not have everything; it is named, the others have.

    Example:

        glmforge cluster stage /shared/tokens/web /shared/GLM-4.5-Air --to /local/cache --hostfile hosts.txt
    """
    from glmforge.errors import HostError
    from glmforge.observe.units import counted, format_bytes, format_duration
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.hosts.machines import fanout_of, machines_of
    from glmforge_ops.storage.sources import list_sources
    from glmforge_ops.storage.stage import stage as stage_on
    from glmforge_ops.storage.stage import stage_in_allocation

    cluster = read_cluster(config, hosts, hostfile, partition, ssh)
    target = to or cluster.local_path
    if target is None or not target.is_absolute():
        raise HostError(f"--to {target or ''}: give the absolute path of a directory on each node's own disk")
    files = list_sources(sources, follow_links=follow_links)
    in_slurm = {"SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"} <= os.environ.keys()
    is_allocation = in_slurm and not any((config, hosts, hostfile, partition))
    again = "complete files are kept, run it again"
    with terminable(), interruptible(again), work_progress("staging", 3) as show:
        if is_allocation:
            done = stage_in_allocation(files, target, verify=not trust)
        else:
            machines = [machine.name for machine in machines_of(cluster)]
            done = stage_on(
                files,
                target,
                machines,
                fanout_of(cluster),
                verify=not trust,
                report=lambda number, total: show(number, f"step {number} of {total}, on {len(machines)} nodes"),
            )
    if as_json:
        typer.echo(json.dumps(asdict(done), indent=1))
    else:
        for host, problem in done.problems.items():
            typer.echo(f"glmforge: {host}: {problem}", err=True)
        whole = len(done.hosts) - len(done.problems)
        nodes = "the allocation's nodes" if is_allocation else f"{whole} of {counted(len(done.hosts), 'node')}"
        typer.echo(
            f"{counted(done.num_files, 'file')}, {format_bytes(done.total_bytes)}, complete on {nodes} below {target}, "
            f"in {format_duration(done.seconds)}"
        )
    raise typer.Exit(1 if done.problems else 0)
