"""The supervisor of a job, with the starter, nodes and checks of its launcher."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from glmforge.config.cluster import ClusterConfig
from glmforge.config.launch import LaunchConfig
from glmforge.config.layout import resolve_layout
from glmforge.config.load import load_config
from glmforge.errors import ConfigError, LaunchError
from glmforge.observe.job_records import JobDescription, JobDirectory
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.health.checks.check import Context, Level, Status
from glmforge_ops.health.checks.examine import REACH, choose_checks, examine
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.hosts.machines import fanout_of, load_cluster, ssh_of
from glmforge_ops.jobs.starters.base import Starter
from glmforge_ops.jobs.starters.nodes import LocalStarter, SshStarter
from glmforge_ops.jobs.starters.srun import SrunStarter
from glmforge_ops.jobs.supervisor.allocation import allocation_of
from glmforge_ops.jobs.supervisor.supervise import Supervisor

_CHECKS = ("gpu.count", "gpu.ecc", "gpu.remapped-rows", "gpu.xid", "nvlink.links")
"""Those that find a broken node. Others (limits, clocks, versions) gave the same before the job began."""
_PROBE_S = 15.0


def supervisor_of(job: JobDirectory) -> Supervisor:
    """Raises `LaunchError` if there is no such job, or it cannot be supervised here."""
    description = job.read()
    launch = description.launch
    cluster = load_cluster(launch.cluster)
    fanout = fanout_of(cluster)
    fanout = replace(fanout, ssh=replace(fanout.ssh, connect_timeout_s=min(fanout.ssh.connect_timeout_s, 8)))
    checker = NodeChecker(cluster.model_copy(update={"gpus_per_node": launch.gpus_per_node}), fanout)
    allocation, bears = allocation_of(launch, fanout), bearable(job, description)
    # Checks that find a broken node are of its GPUs.
    return Supervisor(job, starter_of(launch), allocation, bears, checker if launch.gpus_per_node else None)


def starter_of(launch: LaunchConfig) -> Starter:
    """The starter that the job's options choose. Raises `ConfigError` and `HostError` for its cluster.yaml."""
    if launch.chosen_starter == "local":
        return LocalStarter()
    if launch.chosen_starter == "srun":
        return SrunStarter()
    if launch.chosen_starter == "ssh":
        return SshStarter(ssh_of(load_cluster(launch.cluster)))
    raise LaunchError(f"starter {launch.chosen_starter}: its jobs have no supervisor")


def bearable(job: JobDirectory, description: JobDescription) -> Callable[[int], bool]:
    """Whether the job can run on so many nodes: by a training run's layout and batches, else by the job's options."""
    ranks = description.launch.ranks
    if description.kind != "train" or not job.run_config.exists():
        supervisor, wanted = description.launch.supervisor, description.launch.nodes
        least, most = supervisor.min_nodes or wanted, supervisor.max_nodes or wanted
        return lambda nodes: least <= nodes <= most
    try:
        config = load_config(job.run_config)
    except ConfigError as error:
        raise LaunchError(str(error)) from None

    @cache
    def bears(nodes: int) -> bool:
        try:
            resolve_layout(config, nodes * ranks)
        except ConfigError:
            return False
        return nodes >= config.fault_tolerance.min_nodes

    return bears


@dataclass
class NodeChecker:
    """Checks nodes that are blamed (`Checker`)."""

    cluster: ClusterConfig
    fanout: Fanout

    def __call__(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """What fails, by node. One that is not reached through ssh is left out: not every cluster allows that."""
        context = Context(self.cluster, Thresholds(self.cluster.thresholds), {name: HostLine(name) for name in nodes})
        findings = examine(nodes, choose_checks(Level.QUICK, _CHECKS), context, self.fanout, _PROBE_S)
        faults: dict[str, str] = {}
        for check, of_hosts in findings.outcomes.items():
            for host, outcome in of_hosts.items():
                if check != REACH and outcome.status is Status.FAIL:
                    faults.setdefault(host, f"{check}: {outcome.value}")
        return faults
