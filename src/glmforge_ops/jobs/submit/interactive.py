"""A shell with the nodes and the variables of a job: to try what the job will do, by hand.

Under Slurm and PBS that is an allocation, which ends with the shell; without a scheduler, a shell on the first host.
"""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.schedulers.pbs import environment_of as pbs_environment
from glmforge_ops.jobs.schedulers.slurm import environment_of as slurm_environment
from glmforge_ops.jobs.script.hosts import hosts_of
from glmforge_ops.jobs.script.render import pbs_options, slurm_options

_NOT_OF_SALLOC = ("--output=", "--open-mode=", "--requeue", "--no-requeue", "--array=", "--signal=")


def allocation(launch: LaunchConfig, name: str) -> list[str]:
    """The command that gives the shell. Raises `LaunchError` for what no shell can have."""
    if launch.array:
        raise LaunchError("array: a shell has no tasks; leave out --array, or --interactive")
    variables = variables_of(launch)
    shell = os.environ.get("SHELL") or "/bin/bash"
    inside = ["env", *(f"{variable}={value}" for variable, value in variables.items()), shell]
    if launch.launcher == "slurm":
        options = [option for option in slurm_options(launch, name) if not option.startswith(_NOT_OF_SALLOC)]
        return ["salloc", *options, *inside]
    if launch.launcher == "pbs":
        carried = ",".join(_carried(variables))
        return ["qsub", "-I", *pbs_options(launch, name), *(["-v", carried] if carried else [])]
    if launch.launcher == "local":
        return inside
    for name in launch.secrets:
        raise LaunchError(f"env.{name}: would stand on ssh's command line, for all users to read; set it in the shell")
    hosts = hosts_of(launch)
    there = f"cd -- {shlex.quote(str(Path.cwd()))} && exec {shlex.join([*inside[:-1], 'bash', '-l'])}"
    return [*hosts.ssh, "-tt", "--", hosts.names[0], f"sh -c {shlex.quote(there)}"]


def variables_of(launch: LaunchConfig) -> dict[str, str]:
    """Of every rank of such a job, as far as they are the same for all."""
    names: dict[str, str] = {}
    if launch.interface is not None:
        names |= {"GLOO_SOCKET_IFNAME": launch.interface, "NCCL_SOCKET_IFNAME": launch.interface}
    if launch.cpus_per_task is not None:
        names |= {"OMP_NUM_THREADS": str(launch.cpus_per_task), "SRUN_CPUS_PER_TASK": str(launch.cpus_per_task)}
    if launch.port is not None:
        names["MASTER_PORT"] = str(launch.port)
    return names | launch.plain_env


def enter(command: list[str], launch: LaunchConfig) -> NoReturn:
    """Become it. Raises `LaunchError` if it is not there."""
    environment = dict(os.environ)
    if launch.launcher == "slurm":
        environment = slurm_environment(launch)
    elif launch.launcher == "pbs":
        environment = pbs_environment()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        raise LaunchError(f"{command[0]}: is not on this machine; choose another --launcher") from None


def _carried(variables: Mapping[str, str]) -> list[str]:
    """As qsub -v takes them: it has no way to write a comma or a quotation mark in a value."""
    for name, value in variables.items():
        if any(character in value for character in "\"',\\ $`;&|<>()"):
            raise LaunchError(f"env.{name}: qsub -v cannot carry this value; set it in the shell")
    return [f"{name}={value}" for name, value in variables.items()]
