"""What Slurm would refuse, or never start: reported before anything is submitted, in one line.

`sbatch --test-only` knows all of Slurm's rules, but of what is wrong it says "Requested node configuration is not
available", and it takes a dependency on a job that never existed. So partition, time, nodes, devices, memory and
dependencies are compared with what `sinfo` and `squeue` report first; Slurm has the last word.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from glmforge.config.explain import suggest
from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.schedulers.base import Seen, State, ask, asking
from glmforge_ops.jobs.script.amounts import least_nodes, megabytes, seconds
from glmforge_ops.jobs.script.render import slurm_directives

_JOB = re.compile(r"(?<=:)\d+(?:_\d+)?(?=[+:?,]|$)")
_GPUS = re.compile(r"\bgpu(?::[A-Za-z][^:,()]*)?:(\d+)")
_BLAMED = {
    "Invalid account": ("account", "'sacctmgr show assoc user=$USER' shows yours"),
    "Invalid qos": ("qos", "'sacctmgr show assoc user=$USER format=account,partition,qos' shows yours"),
    "Job dependency problem": ("dependency", "write it as in afterok:1234"),
    "Invalid feature": ("constraint", "'sinfo -o %f' shows the features that there are"),
}
"""What sbatch says -> the option that it is about, and what helps."""


@dataclass(frozen=True)
class _Node:
    """A node of a partition, as sinfo lists it."""

    name: str
    partition: str
    max_time: str
    gpus: int
    cpus: int
    memory_mb: int
    features: frozenset[str]


def check(
    launch: LaunchConfig, environment: Mapping[str, str], look: Callable[[Iterable[str]], Mapping[str, Seen]]
) -> None:
    """Raises `LaunchError`."""
    nodes = _nodes()
    name = _partition(launch, list(dict.fromkeys(node.partition for node in nodes)))
    of_partition = [node for node in nodes if node.partition.rstrip("*") == name]
    limit = of_partition[0].max_time if of_partition else "infinite"
    if launch.time is not None and seconds(launch.time) > seconds(limit):
        _refuse("time", f"{launch.time} is above the limit of partition {name}, {limit}")
    names = {node.name for node in nodes}
    for option, given in (("exclude", launch.exclude), ("nodelist", launch.nodelist)):
        if unknown := [each for each in given if each not in names]:
            _refuse(option, f"Slurm has no node '{unknown[0]}'; {suggest(unknown[0], sorted(names))}")
    _check_nodes(launch, of_partition, f"partition {name}")
    jobs = list(dict.fromkeys(_JOB.findall(launch.dependency or "")))
    seen = look(jobs) if jobs else {}
    if missing := [job for job in jobs if seen[job].state is State.UNKNOWN]:
        _refuse("dependency", f"Slurm knows no job {missing[0]}; 'squeue --me' shows your jobs")
    _test(launch, environment)


def _nodes() -> list[_Node]:
    answer = ask("sinfo", "--noheader", "--Node", "--format=%P|%l|%N|%G|%c|%m|%f", environment=asking())
    if answer.status:
        raise LaunchError(f"sinfo: {answer.reason}; is this where jobs are submitted?")
    found = []
    for line in answer.stdout.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 7:
            partition, limit, name, gres, cpus, memory, features = fields
            known = frozenset(features.split(",")) - {"(null)"}
            gpus = sum(map(int, _GPUS.findall(gres)))
            found.append(_Node(name, partition, limit, gpus, _number(cpus), _number(memory), known))
    return found


def _partition(launch: LaunchConfig, names: Sequence[str]) -> str:
    """`names` of partitions; the default one has a star."""
    known = [name.rstrip("*") for name in names]
    if launch.partition is not None:
        if launch.partition not in known:
            _refuse("partition", f"Slurm has no '{launch.partition}'; {suggest(launch.partition, known)}")
        return launch.partition
    default = next((name.rstrip("*") for name in names if name.endswith("*")), None)
    if default is None:
        _refuse("partition", f"Slurm has no default one; give one of {', '.join(known) or '(there are none)'}")
    return default


def _check_nodes(launch: LaunchConfig, nodes: Sequence[_Node], where: str) -> None:
    """Whether enough nodes have what is asked for; the first that is missing is named."""
    wanted = least_nodes(launch)
    of_spares = f", {launch.supervisor.spare_nodes} of them spare," if wanted > launch.nodes else ""
    if wanted > len(nodes):
        _refuse("nodes", f"{wanted}{of_spares} is more than {where} has: {len(nodes)}")
    left = [node for node in nodes if node.name not in launch.exclude]
    if wanted > len(left):
        _refuse("exclude", f"leaves {len(left)} of the {len(nodes)} nodes of {where}, and {wanted} are needed")
    cpus = launch.ranks * (launch.cpus_per_task or 1)
    needs: list[tuple[str, str, Callable[[_Node], int], int]] = [
        ("gpus-per-node", f"{launch.gpus_per_node}", lambda node: node.gpus, launch.gpus_per_node),
        ("mem", f"{megabytes(launch.mem or '0')} MB", lambda node: node.memory_mb, megabytes(launch.mem or "0")),
        ("cpus-per-task", f"{cpus} CPUs ({launch.ranks} ranks)", lambda node: node.cpus, cpus),
    ]
    for field, words, has, asked in needs:
        most = max(map(has, left), default=0)
        left = [node for node in left if has(node) >= asked]
        if wanted > len(left):
            few = f"; {', '.join(node.name for node in left)} alone" if left else ""
            _refuse(field, f"{words} on each of {wanted} nodes: {where} has at most {most}{few}")
    if launch.constraint is not None and re.fullmatch(r"[A-Za-z0-9_.-]+", launch.constraint):
        known = {feature for node in nodes for feature in node.features}
        if launch.constraint not in known:
            _refuse(
                "constraint",
                f"no node of {where} has '{launch.constraint}'; there are {', '.join(sorted(known)) or 'none'}",
            )


def _test(launch: LaunchConfig, environment: Mapping[str, str]) -> None:
    """Slurm's own answer. A node that is down, or too busy, is no refusal: the job waits for it."""
    answer = ask("sbatch", "--test-only", environment=environment, stdin=f"#!/bin/sh\n{slurm_directives(launch)}")
    if answer.status:
        for said, (option, helps) in _BLAMED.items():
            if said in answer.reason:
                value = getattr(launch, option)
                given = f"does not take '{value}'" if value else "wants one to be given"
                _refuse(option, f"Slurm {given} ({answer.reason}); {helps}")
        raise LaunchError(f"sbatch rejects this job: {answer.reason}")


def _number(text: str) -> int:
    """Of 64, or 64+ where nodes differ."""
    return int(text.rstrip("+")) if text.rstrip("+").isdecimal() else 0


def _refuse(option: str, message: str) -> NoReturn:
    raise LaunchError(f"{option}: {message}")
