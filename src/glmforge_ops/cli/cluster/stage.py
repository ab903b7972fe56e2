"""`glmforge cluster stage`."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge.cli.interruptible import interruptible, terminable
from glmforge_ops.cli.cluster.machines import HostfileOption, HostsOption, PartitionOption, SshOption, read_cluster

if TYPE_CHECKING:
    from glmforge_ops.storage.stage import Staged


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
    trust: Annotated[bool, typer.Option("--trust", help="Compare size and time of copies instead of checksums.")] = (
        False
    ),
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
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.hosts.machines import fanout_of, machines_of
    from glmforge_ops.storage.sources import list_sources
    from glmforge_ops.storage.stage import stage as stage_on
    from glmforge_ops.storage.stage import stage_in_allocation

    cluster = read_cluster(config, hosts, hostfile, partition, ssh)
    target = to or cluster.local_path
    if target is None:
        raise HostError("--to: give the absolute path of a directory on each node's own disk")
    files = list_sources(sources)
    in_slurm = {"SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"} <= os.environ.keys()
    again = "complete files are kept, run it again"
    with terminable(), interruptible(again), work_progress("staging", 3) as show:
        if in_slurm and not any((config, hosts, hostfile, partition)):
            done = stage_in_allocation(files, target, verify=not trust)
        else:
            names = [machine.name for machine in machines_of(cluster)]

            def report(number: int, total: int) -> None:
                show(number, f"step {number} of {total}, on {len(names)} nodes")

            done = stage_on(files, target, names, fanout_of(cluster), verify=not trust, report=report)
    _print(done, target, as_json)
    raise typer.Exit(1 if done.problems else 0)


def _print(done: "Staged", target: Path, as_json: bool) -> None:
    from glmforge.files import shown
    from glmforge.observe.units import counted, format_bytes, format_duration

    if as_json:
        typer.echo(json.dumps(asdict(done), indent=1))
        return
    for host, problem in done.problems.items():
        typer.echo(f"glmforge: {host}: {shown(problem)}", err=True)
    whole = f"{len(done.hosts) - len(done.problems)} of {counted(len(done.hosts), 'node')}"
    nodes = "the allocation's nodes" if done.hosts[0].startswith("job ") else whole
    size, duration = format_bytes(done.total_bytes), format_duration(done.seconds)
    typer.echo(f"{counted(done.num_files, 'file')}, {size}, complete on {nodes} below {target}, in {duration}")
