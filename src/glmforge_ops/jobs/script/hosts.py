"""The machines of a job without a scheduler: from --hosts, a hostfile or cluster.yaml."""

from dataclasses import dataclass

from glmforge.config.cluster import ClusterConfig
from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.runtime.hostfile import parse_hosts, read_hostfile
from glmforge_ops.hosts.machines import load_cluster, machines_of, ssh_of
from glmforge_ops.jobs.script.amounts import least_nodes


@dataclass(frozen=True)
class Hosts:
    """`address`: of the first one, at which the others reach it; None: its name. `ssh`: the command and its options."""

    names: tuple[str, ...] = ()
    address: str | None = None
    ssh: tuple[str, ...] = ("ssh",)


NO_HOSTS = Hosts()


def cluster_of(launch: LaunchConfig) -> ClusterConfig:
    """cluster.yaml, with the hosts of the options in place of its own. Raises `GlmforgeError`."""
    cluster = load_cluster(launch.cluster)
    if launch.hosts:
        nodes = parse_hosts(",".join(launch.hosts))
    elif launch.hostfile is not None:
        nodes = read_hostfile(launch.hostfile)
    else:
        return cluster
    return cluster.model_copy(update={"nodes": nodes, "hostfile": None, "slurm": None})


def hosts_of(launch: LaunchConfig) -> Hosts:
    """All hosts, the job's and the spare ones; none where a scheduler gives them.

    Raises `GlmforgeError` if they are too few.
    """
    if launch.launcher not in ("ssh", "mpi"):
        return NO_HOSTS
    cluster = cluster_of(launch)
    if cluster.nodes is None and cluster.hostfile is None and cluster.slurm is None:
        raise LaunchError(
            f"hosts: the launcher {launch.launcher} needs hosts: --hosts, --cluster, or hostfile in --options"
        )
    names, wanted = host_names(launch), least_nodes(launch)
    if wanted > len(names):
        raise LaunchError(f"nodes: {wanted}, spares included, is more than there are hosts: {len(names)}")
    ssh = ssh_of(cluster)
    return Hosts(names, cluster.master_addr, (*ssh.command, *ssh.options))


def host_names(launch: LaunchConfig) -> tuple[str, ...]:
    """Those of the options, without the excluded ones. Raises `GlmforgeError`, also if there are none."""
    names = tuple(machine.name for machine in machines_of(cluster_of(launch)) if machine.name not in launch.exclude)
    if not names:
        raise LaunchError("no hosts: pass --hosts or --cluster, or set hostfile in --options")
    return names
