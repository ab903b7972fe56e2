"""Which machines a command is about: the options that all commands of the group share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmforge.config.cluster import ClusterConfig

ConfigArgument = Annotated[
    Path | None, typer.Argument(metavar="[CLUSTER.YAML]", help="The cluster; see 'glmforge cluster init'.")
]
HostsOption = Annotated[str | None, typer.Option(help="Names or ranges, separated by commas: 'node[001-128]'.")]
HostfileOption = Annotated[Path | None, typer.Option(help="One host per line, with slots=N.")]
PartitionOption = Annotated[str | None, typer.Option(help="The nodes of this Slurm partition.")]
SshOption = Annotated[str | None, typer.Option(help='How to call ssh: "ssh -F cluster.conf".')]


def read_cluster(
    config: Path | None,
    hosts: str | None,
    hostfile: Path | None,
    partition: str | None,
    ssh: str | None,
    **fields: object,
) -> "ClusterConfig":
    """The cluster of the file, with the machines, the ssh and other `fields` of the options. Raises `GlmforgeError`."""
    from pydantic import ValidationError

    from glmforge.config.cluster import ClusterConfig, SlurmConfig
    from glmforge.errors import ConfigError
    from glmforge.runtime.hostfile import parse_hosts
    from glmforge_ops.hosts.machines import load_cluster

    options = {"--hosts": hosts, "--hostfile": hostfile, "--partition": partition}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise typer.BadParameter(f"give {given[0]} or {given[1]}, not both")
    cluster = load_cluster(config)
    changes = {name: value for name, value in fields.items() if value is not None}
    if given:
        changes |= {
            "nodes": None if hosts is None else parse_hosts(hosts),
            "hostfile": hostfile,
            "slurm": None if partition is None else SlurmConfig(partition=partition),
        }
    if ssh is not None:
        changes["ssh"] = cluster.ssh.model_copy(update={"command": ssh})
    try:
        return ClusterConfig.model_validate(dict(cluster) | changes)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc'])) or 'options'}: {first['msg']}") from None
