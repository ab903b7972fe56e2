"""The machines of a job that no scheduler hands out: from --hosts, a hostfile or cluster.yaml."""

from dataclasses import dataclass

from glmforge.config.cluster import ClusterConfig
from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.runtime.hostfile import parse_hosts, read_hostfile
from glmforge_ops.hosts.machines import load_cluster, machines_of, ssh_of
from glmforge_ops.jobs.script.amounts import least_nodes


@dataclass(frozen=True)
class Hosts:
    """`address`: of the first one, at which the others reach it; None: its name. `ssh`: how they are called."""

    names: tuple[str, ...] = ()
    address: str | None = None
    ssh: tuple[str, ...] = ("ssh",)


NO_HOSTS = Hosts()


def cluster_of(launch: LaunchConfig) -> ClusterConfig:
    """cluster.yaml, with the hosts of the options in place of its own. Raises `GlmforgeError`."""
    cluster = load_cluster(launch.cluster)
    changes: dict[str, object] = {}
    if launch.hosts:
        changes = {"nodes": parse_hosts(",".join(launch.hosts)), "hostfile": None, "slurm": None}
    elif launch.hostfile is not None:
        changes = {"nodes": read_hostfile(launch.hostfile), "hostfile": None, "slurm": None}
    return cluster.model_copy(update=changes)


def hosts_of(launch: LaunchConfig) -> Hosts:
    """All hosts that there are, the job's and the spare ones. Raises `GlmforgeError` if they are too few."""
    cluster = cluster_of(launch)
    if launch.launcher == "pbs":
        return Hosts(ssh=_ssh(cluster))
    if launch.launcher not in ("ssh", "mpi"):
        return NO_HOSTS
    if cluster.nodes is None and cluster.hostfile is None and cluster.slurm is None:
        raise LaunchError(f"hosts: the launcher {launch.launcher} needs them; pass --hosts, --hostfile or --cluster")
    names, wanted = host_names(launch), least_nodes(launch)
    if wanted > len(names):
        spare = f", {launch.supervisor.spare_nodes} of them spare," if launch.supervisor.spare_nodes else ""
        raise LaunchError(f"nodes: {wanted}{spare} is more than there are hosts: {len(names)}")
    return Hosts(names, cluster.master_addr, _ssh(cluster))


def host_names(launch: LaunchConfig) -> tuple[str, ...]:
    """Those that the options name, without the excluded ones. Raises `GlmforgeError`, also if there is none."""
    names = tuple(machine.name for machine in machines_of(cluster_of(launch)) if machine.name not in launch.exclude)
    if not names:
        raise LaunchError("there is no host: give --hosts, --hostfile or --cluster")
    return names


def _ssh(cluster: ClusterConfig) -> tuple[str, ...]:
    ssh = ssh_of(cluster)
    return (*ssh.command, *ssh.options)
