"""Which machines a cluster has, and how to ask them: from `cluster.yaml`, a hostfile, a list or Slurm."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from glmforge.config.cluster import ClusterConfig
from glmforge.config.load import load_settings
from glmforge.errors import HostError
from glmforge.runtime.hostfile import HostLine, expand_hosts, parse_hosts, read_host_lines
from glmforge.runtime.ssh import Ssh, last_line
from glmforge_ops.hosts.fanout import Fanout


def load_cluster(file: Path | None) -> ClusterConfig:
    """The cluster that a file describes; without a file one that names no machines. Raises `ConfigError`."""
    if file is None:
        return ClusterConfig()
    cluster = load_settings(ClusterConfig, file)
    if cluster.hostfile is not None and not cluster.hostfile.is_absolute():  # beside the file that names it
        return cluster.model_copy(update={"hostfile": file.parent / cluster.hostfile})
    return cluster


def machines_of(cluster: ClusterConfig) -> list[HostLine]:
    """The cluster's machines; this one alone if it names none. Raises `HostError`."""
    if cluster.hostfile is not None:
        return read_host_lines(cluster.hostfile)
    names = ["localhost"]
    if cluster.nodes is not None:
        names = parse_hosts(",".join(cluster.nodes), "nodes")
    elif cluster.slurm is not None:
        names = slurm_nodes(cluster.slurm.partition)
    return [HostLine(name, cluster.gpus_per_node or None) for name in names]


def slurm_nodes(partition: str | None) -> list[str]:
    """The nodes of a Slurm partition, drained ones included; of the default one for None. Raises `HostError`."""
    listed = ask_slurm("sinfo", "--noheader", "--Node", "--format=%N %P")
    rows = [words for words in map(str.split, listed.splitlines()) if len(words) == 2]
    partitions = {name.rstrip("*") for _, name in rows}
    if partition is not None and partition not in partitions:
        raise HostError(f"Slurm has no partition '{partition}'; there are: {', '.join(sorted(partitions)) or 'none'}")
    wanted = [
        node for node, name in rows if (name.endswith("*") if partition is None else name.rstrip("*") == partition)
    ]
    return expand_hosts(dict.fromkeys(wanted), "sinfo")


def gres_of(partition: str | None) -> list[str]:
    """The devices (gres) of the nodes of a partition (None: of all) as Slurm lists them, such as "gpu:h200:8"."""
    options = [] if partition is None else [f"--partition={partition}"]
    return ask_slurm("sinfo", "--noheader", "--format=%G", *options).split()


def ssh_of(cluster: ClusterConfig) -> Ssh:
    """How the cluster's machines are reached. Raises `HostError`."""
    given = cluster.ssh.model_dump(exclude={"command", "at_once"})
    return Ssh(Ssh.of_command(cluster.ssh.command).command, **given)


def fanout_of(cluster: ClusterConfig) -> Fanout:
    """What asks the cluster's machines."""
    return Fanout(ssh_of(cluster), at_once=cluster.ssh.at_once)


def ask_slurm(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """What a command of Slurm prints. Raises `HostError`."""
    missing, otherwise = "name the nodes, or run this where Slurm is", "is slurmctld up?"
    return printed_by(*command, limit_s=30, missing=missing, otherwise=otherwise, environment=environment)


def printed_by(
    *command: str,
    limit_s: float,
    missing: str,
    otherwise: str = "",
    environment: Mapping[str, str] | None = None,
    check: bool = True,
) -> str:
    """What a program of this machine prints; with `check` it must end with 0.

    Raises `HostError`: with the fix `missing` if it is not installed, with `otherwise` if it fails.
    """
    name, fix = Path(command[0]).name, f"; {otherwise}" if otherwise else ""
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=limit_s, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise HostError(f"there is no '{name}' on this machine; {missing}") from None
    except OSError as error:  # no memory for another process, or no permission
        raise HostError(f"'{name}' cannot be started: {error.strerror}; look at this machine") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"'{name}' gave no answer within {limit_s:g} s{fix}") from None
    if check and done.returncode != 0:
        raise HostError(f"'{name}' fails: {last_line(done.stderr) or f'status {done.returncode}'}{fix}")
    return done.stdout
