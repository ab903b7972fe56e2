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
    from glmforge.observe.work_progress import work_progress
    from glmforge_ops.setup.find import find_cluster
    from glmforge_ops.setup.write_config import config_text, refuse_existing, write_config

    if out != Path("-") and not force:
        refuse_existing(out)
    cluster = read_cluster(None, hosts, hostfile, partition, ssh)
    with work_progress("asking", 64) as show:
        found = find_cluster(cluster, lambda done, total: show(done, f"{done} of {total} machines have answered"))
    text = config_text(found)
    if out == Path("-"):
        typer.echo(text, nl=False)
    else:
        write_config(out, text, force)
    for line in found.said:
        typer.echo(f"found: {escaped(line)}", err=out == Path("-"))
    for line in found.missing:
        typer.echo(f"not found: {escaped(line)}", err=out == Path("-"))
    if out != Path("-"):
        typer.echo(f"{escaped(str(out))}: read it and correct it, then: glmforge cluster setup {escaped(str(out))}")
