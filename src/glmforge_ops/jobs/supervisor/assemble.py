"""The supervisor of a job, with what belongs to its launcher."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from glmforge.config.cluster import ClusterConfig
from glmforge.config.launch import LaunchConfig
from glmforge.config.layout import resolve_layout
from glmforge.config.load import load_config
from glmforge.errors import ConfigError, LaunchError
from glmforge.files import read_text
from glmforge.observe.job_records import JobDescription, JobDirectory
from glmforge.runtime.hostfile import HostLine, expand_hosts
from glmforge_ops.health.checks.check import Context, Level, Status
from glmforge_ops.health.checks.examine import REACH, choose_checks, examine
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.hosts.machines import fanout_of, load_cluster, ssh_of
from glmforge_ops.jobs.schedulers.here import id_of_this_process
from glmforge_ops.jobs.script.hosts import host_names
from glmforge_ops.jobs.starters.base import Starter
from glmforge_ops.jobs.starters.local import LocalStarter
from glmforge_ops.jobs.starters.srun import SrunStarter
from glmforge_ops.jobs.starters.ssh import SshStarter
from glmforge_ops.jobs.supervisor.places import Allocation, Here
from glmforge_ops.jobs.supervisor.slurm import SlurmAllocation
from glmforge_ops.jobs.supervisor.supervise import Supervisor

_CHECKS = ("gpu.count", "gpu.ecc", "gpu.remapped-rows", "gpu.xid", "nvlink.links")
"""What speaks of a broken node. Others (limits, clocks, versions) were no different before the job began."""
_PROBE_S = 15.0


def supervisor_of(job: JobDirectory) -> Supervisor:
    """Raises `LaunchError` if there is no such job, or this is no place to supervise it."""
    description = job.read()
    launch = description.launch
    cluster = load_cluster(launch.cluster)
    fanout = fanout_of(cluster)
    fanout = replace(fanout, ssh=replace(fanout.ssh, connect_timeout_s=min(fanout.ssh.connect_timeout_s, 8)))
    # Whatever speaks of a broken node is of its GPUs: without any there is nothing to look at.
    checker = NodeChecker(cluster.model_copy(update={"gpus_per_node": launch.gpus_per_node}), fanout)
    return Supervisor(
        job,
        starter_of(launch),
        allocation_of(launch, fanout),
        bearable(job, description),
        checker if launch.gpus_per_node else None,
    )


def allocation_of(launch: LaunchConfig, fanout: Fanout) -> Allocation:
    """The nodes of a job of this launcher."""
    if launch.launcher == "slurm" or (launch.launcher == "pbs" and "SLURM_JOB_ID" in os.environ):
        return SlurmAllocation.here()  # slurm-wlm-torque: PBS's commands in front of Slurm
    if launch.launcher == "pbs":
        return pbs_job(fanout)
    if launch.launcher == "local":
        return Here(id_of_this_process())
    return Here(id_of_this_process(), host_names(launch), fanout)


def pbs_job(fanout: Fanout) -> Here:
    """The nodes of the PBS job that this process is part of. Raises `LaunchError` outside one.

    Nobody queues it again: it ends with the status of a job that gave way, and is submitted again by a person.
    """
    number, file = os.environ.get("PBS_JOBID"), os.environ.get("PBS_NODEFILE")
    if not number or not file:
        raise LaunchError("PBS_JOBID is not set: this job is PBS's; submit it with 'glmforge launch'")
    lines = read_text(Path(file), error=LaunchError).split()  # a node stands there once for each of its slots
    hosts = tuple(expand_hosts(dict.fromkeys(lines), "PBS_NODEFILE"))
    return Here(number, hosts, fanout, is_given=True)


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
    """Whether the job can run on so many nodes: of a training run, what its layout and its batches allow.

    Of another program only what it asks for, and what its options say.
    """
    ranks, run = description.launch.ranks, job.root / "run.yaml"
    if description.kind != "train" or not run.exists():
        supervisor, wanted = description.launch.supervisor, description.launch.nodes
        least, most = supervisor.min_nodes or wanted, supervisor.max_nodes or wanted
        return lambda nodes: least <= nodes <= most
    try:
        config = load_config(run)
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


class NodeChecker:
    """Looks at nodes that are blamed with the checks that speak of a broken one."""

    def __init__(self, cluster: ClusterConfig, fanout: Fanout) -> None:
        self.cluster, self.fanout = cluster, fanout

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
