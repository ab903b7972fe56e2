"""`glmforge cluster init`."""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.files import escaped
from glmforge_ops.cli.cluster.machines import HostfileOption, HostsOption, PartitionOption, SshOption, read_cluster


def init(
    out: Annotated[Path, typer.Option(help="File to write; - prints it.")] = Path("cluster.yaml"),
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    partition: PartitionOption = None,
    ssh: SshOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write cluster.yaml from what is found: machines, GPUs, networks, local disks and shared storage.

    Without --hosts, --hostfile or --partition: the nodes of Slurm's default partition, or this machine. Says what it
    found and what not; the file explains every field.

    Example:

        glmforge cluster init --hosts 'node[001-128]' --out cluster.yaml
    """
    from itertools import count

    from glmforge.data.files import refuse_unwritable, write_whole
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.setup.find import config_text, find_cluster

    prints = out == Path("-")
    if not prints:
        refuse_unwritable(out, force)
    cluster, came = read_cluster(None, hosts, hostfile, partition, ssh), count(1)
    with work_progress("asking", 64) as show:
        found = find_cluster(cluster, lambda _: show(number := next(came), f"{number} machines have answered"))
    text = config_text(found)
    if prints:
        typer.echo(text, nl=False)
    else:
        write_whole(out, text.encode())
    for head, lines in (("found", found.said), ("not found", found.missing)):
        for line in lines:
            typer.echo(f"{head}: {escaped(line)}", err=prints)
    if not prints:
        typer.echo(f"{escaped(str(out))}: read it and correct it, then: glmforge cluster setup {escaped(str(out))}")
