"""What Slurm would refuse, or never start: said before anything is submitted, in one line.

`sbatch --test-only` knows all of Slurm's rules, but of what is wrong it says "Requested node configuration is not
available", and it takes a dependency on a job that there never was. So partition, nodes, devices, memory, time and
dependencies are compared with what the controller tells of them first, and Slurm has the last word.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from glmforge.config.explain import suggest
from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.jobs.schedulers.commands import ask
from glmforge_ops.jobs.script.amounts import megabytes, seconds
from glmforge_ops.jobs.script.node_counts import least_nodes
from glmforge_ops.jobs.script.render import slurm_directives

_JOB = re.compile(r"(?<=:)\d+(?:_\d+)?(?=[+:?,]|$)")
_GPUS = re.compile(r"\bgpu(?::[A-Za-z][^:,()]*)?:(\d+)")
_FEATURE = re.compile(r"[A-Za-z0-9_.-]+")
_BLAMED = {
    "Invalid account": ("account", "'sacctmgr show assoc user=$USER' shows yours"),
    "Invalid qos": ("qos", "'sacctmgr show assoc user=$USER format=account,partition,qos' shows yours"),
    "Job dependency problem": ("dependency", "write it as in afterok:1234"),
    "Invalid feature": ("constraint", "'sinfo -o %f' shows the features that there are"),
}
"""What sbatch says -> the option that it is about, and what helps."""


@dataclass(frozen=True)
class _Node:
    """What the controller says of a node."""

    name: str
    partitions: frozenset[str]
    gpus: int
    cpus: int
    memory_mb: int
    features: frozenset[str]

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> "_Node":
        return cls(
            fields.get("NodeName", ""),
            frozenset(fields.get("Partitions", "").split(",")),
            sum(map(int, _GPUS.findall(fields.get("Gres", "")))),
            _number(fields.get("CPUEfctv") or fields.get("CPUTot", "0")),
            _number(fields.get("RealMemory", "0")),
            frozenset(fields.get("AvailableFeatures", "").split(",")),
        )


def check(launch: LaunchConfig, environment: Mapping[str, str]) -> None:
    """Raises `LaunchError`."""
    partitions = {fields["PartitionName"]: fields for fields in _show("partition", environment)}
    partition = _partition(launch, partitions)
    if launch.time is not None and seconds(launch.time) > seconds(partition["MaxTime"]):
        _refuse("time", f"{launch.time} is above the limit of partition {_name(partition)}, {partition['MaxTime']}")
    nodes = [_Node.of(fields) for fields in _show("node", environment)]
    _check_excluded(launch, nodes)
    _check_nodes(launch, [node for node in nodes if _name(partition) in node.partitions], _name(partition))
    _check_dependency(launch, environment)
    _test(launch, environment)


def _partition(launch: LaunchConfig, partitions: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    if launch.partition is not None:
        if launch.partition not in partitions:
            _refuse("partition", f"Slurm has no '{launch.partition}'; {suggest(launch.partition, partitions)}")
        return partitions[launch.partition]
    default = next((fields for fields in partitions.values() if fields.get("Default") == "YES"), None)
    if default is None:
        _refuse("partition", f"Slurm has no default one; give one of {', '.join(partitions) or '(there are none)'}")
    return default


def _check_excluded(launch: LaunchConfig, nodes: Sequence[_Node]) -> None:
    names = {node.name for node in nodes}
    for name in launch.exclude:
        if name not in names:
            _refuse(
                "exclude", f"Slurm has no node '{name}'; {suggest(name, names) if len(names) < 50 else 'see sinfo'}"
            )


def _check_nodes(launch: LaunchConfig, nodes: Sequence[_Node], partition: str) -> None:
    """Narrow down to the nodes that will do, naming what is wanting first."""
    where = f"partition {partition}"
    wanted = least_nodes(launch)
    words = f"{wanted}"
    if wanted > launch.nodes:
        words += f", {wanted - launch.nodes} of them spare,"
    elif wanted < launch.nodes:
        words += " (min_nodes)"
    if wanted > len(nodes):
        _refuse("nodes", f"{words} is more than {where} has: {len(nodes)}")
    left = [node for node in nodes if node.name not in launch.exclude]
    if wanted > len(left):
        _refuse("exclude", f"leaves {len(left)} of the {len(nodes)} nodes of {where}, and nodes is {words.rstrip(',')}")
    if launch.constraint is not None and _FEATURE.fullmatch(launch.constraint):
        known = {feature for node in nodes for feature in node.features} - {"(null)", ""}
        if launch.constraint not in known:
            _refuse("constraint", f"no node of {where} has '{launch.constraint}'; there are {_list(known)}")
        left = [node for node in left if launch.constraint in node.features]
        if wanted > len(left):
            few = f"'{launch.constraint}' leaves {len(left)} of the nodes of {where}"
            _refuse("constraint", f"{few}, and nodes is {words.rstrip(',')}")
    cpus = launch.ranks * (launch.cpus_per_task or 1)
    for field, asked, has in (
        ("gpus-per-node", launch.gpus_per_node, lambda node: node.gpus),
        ("mem", megabytes(launch.mem or "0"), lambda node: node.memory_mb),
        ("cpus-per-task", cpus, lambda node: node.cpus),
    ):
        fit = [node for node in left if has(node) >= asked]
        if len(fit) < wanted:
            unit = {"mem": " MB", "cpus-per-task": f" CPUs ({launch.ranks} ranks)"}.get(field, "")
            most = max((has(node) for node in left), default=0)
            few = f"; {fold_hosts([node.name for node in fit])} alone" if fit else ""
            _refuse(field, f"{asked}{unit} on each of {words.rstrip(',')} nodes: {where} has at most {most}{few}")
        left = fit


def _check_dependency(launch: LaunchConfig, environment: Mapping[str, str]) -> None:
    for job in dict.fromkeys(_JOB.findall(launch.dependency or "")):
        answer = ask("scontrol", "show", "job", "-o", job, environment=environment)
        if answer.status == 0:
            continue
        if "Invalid job id" not in answer.stderr:
            raise LaunchError(f"scontrol: {answer.reason}")
        done = ask("sacct", "-n", "-P", "-X", f"--jobs={job}", "--format=JobID", environment=environment)
        if done.status or not done.stdout.strip():
            _refuse("dependency", f"Slurm knows no job {job}; 'squeue --me' shows those that there are")


def _test(launch: LaunchConfig, environment: Mapping[str, str]) -> None:
    """Slurm's own answer. A node that is down, or too busy, is no refusal: the job waits for it."""
    script = f"#!/bin/sh\n{slurm_directives(launch)}"
    answer = ask("sbatch", "--test-only", environment=environment, stdin=script)
    if answer.status:
        for said, (option, helps) in _BLAMED.items():
            if said in answer.reason:
                value = getattr(launch, option)
                given = "wants one to be given" if value is None else f"does not take '{value}'"
                _refuse(option, f"Slurm {given} ({answer.reason}); {helps}")
        raise LaunchError(f"sbatch: would not take this job: {answer.reason}")


def _show(kind: str, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Every partition or node, field by field."""
    answer = ask("scontrol", "show", kind, "-o", environment=environment)
    if answer.status:
        raise LaunchError(f"scontrol: {answer.reason}; is this where jobs are submitted?")
    rows = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in answer.stdout.splitlines()]
    return [row for row in rows if row]


def _name(partition: Mapping[str, str]) -> str:
    return partition["PartitionName"]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _refuse(option: str, message: str) -> NoReturn:
    raise LaunchError(f"{option}: {message}")
