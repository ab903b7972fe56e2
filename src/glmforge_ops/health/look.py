"""The quick look at one machine: its facts, what the quick checks say of them, and its environment variables.

File systems, GPUs and checks are looked at in processes of their own with a time limit: a dead file server or a broken
GPU costs the part that it concerns, not the page.
"""

import os
import platform
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from glmforge.config.cluster import ClusterConfig
from glmforge.files import escaped
from glmforge.observe.units import format_bytes, format_duration
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.environment.lint import Finding, lint_environment
from glmforge_ops.health.checks.check import CHECKS, NONSENSE, Context, Facts, Level, Outcome, Status
from glmforge_ops.health.checks.examine import REACH, choose_checks, examine
from glmforge_ops.health.checks.gpu import gpus
from glmforge_ops.health.checks.storage import mounts
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.machines import fanout_of

PACKAGES = ("glmforge", "torch", "numpy", "triton", "tokenizers", "transformers", "deepspeed", "nvidia-nccl-cu12")
"""Whose versions are shown where they are installed."""
_OF_A_LOGIN = ("environment", "versions")
"""Checks of what a login there would have; here the environment and the Python of this process count."""
_LIMIT_S = 10.0
_HERE = LOCAL[0]
_TRAINING = re.compile(r"(^|[\s/])(torchrun|deepspeed|glmforge train)(\s|$)|torch\.distributed\.(run|launch)")
_VIRTUAL = ("lo", "docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "cilium", "dummy", "ifb")

Line = tuple[str, str, str]
"""Verdict ("" for a plain fact), subject, words."""


@dataclass(frozen=True)
class Health:
    """The result of a look.

    Attributes:
        facts: by part: "system", and "disks" and "gpus" if they answered.
        outcomes: verdicts of the quick checks; of a part that did not answer, too.
        versions: of packages in this Python.
    """

    facts: Mapping[str, Facts]
    outcomes: Mapping[str, Outcome]
    versions: Mapping[str, str]
    environment: tuple[Finding, ...] = ()

    def count(self, status: Status) -> int:
        """Verdicts of a kind: of checks, of each variable that is wrong, or of the environment that is right."""
        return sum(line[0] == status for line in self.verdicts())

    def exit_status(self, strict: bool) -> int:
        """0 if nothing failed; `strict`: and nothing is to be warned of."""
        return 1 if self.count(Status.FAIL) or (strict and self.count(Status.WARNING)) else 0

    def verdicts(self) -> Iterator[Line]:
        """What the checks and the linter say."""
        for name, outcome in self.outcomes.items():
            limit = f" ({outcome.threshold})" if outcome.threshold else ""
            fix = f": {outcome.fix}" if outcome.fix else ""
            yield outcome.status.value, name, f"{outcome.value}{limit}{fix}"
        for finding in self.environment:
            status = Status.FAIL if finding.severity == "error" else Status.WARNING
            value = "" if finding.value is None else f"={finding.value}"
            yield status.value, "environment", f"{finding.name}{value}: {finding.problem}: {finding.instead}"
        if not self.environment:
            yield Status.PASS.value, "environment", "no variable that is wrong, gone or harmful"

    def lines(self) -> Iterator[Line]:
        """The page: facts first, then verdicts; of skipped checks the names only."""
        for part, write in {"system": _system, "disks": _mounts, "gpus": _gpus}.items():
            try:
                yield from (
                    [("", subject, words) for subject, words in write(self.facts[part])] if part in self.facts else ()
                )
            except NONSENSE as error:
                yield Status.FAIL.value, part, f"invalid answer: {error}"
        yield "", "versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())
        verdicts = list(self.verdicts())
        yield from (line for line in verdicts if line[0] != Status.SKIPPED)
        if skipped := [name for status, name, _ in verdicts if status == Status.SKIPPED]:
            yield Status.SKIPPED.value, "not judged", ", ".join(skipped)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a program."""
        return {
            "counts": {status.value: self.count(status) for status in Status},
            "facts": dict(self.facts),
            "versions": dict(self.versions),
            "checks": {name: asdict(outcome) for name, outcome in self.outcomes.items()},
            "environment": [finding.as_dict() for finding in self.environment],
        }


def look(cluster: ClusterConfig | None = None, environment: Mapping[str, str] = os.environ) -> Health:
    """Look at this machine; without a `cluster` no more is expected of it than what it has."""
    if cluster is None:
        cluster = ClusterConfig(nodes=[_HERE], gpus_per_node=len(list(Path("/dev").glob("nvidia[0-9]*"))))
    alone = {check.name for check in CHECKS if check.gather is not None and check.name.split(".")[0] not in _OF_A_LOGIN}
    checks = [check for check in choose_checks(Level.QUICK) if check.name in alone]
    context = Context(cluster, Thresholds(cluster.thresholds))
    parts = {"disks": mounts, "gpus": gpus}
    findings = examine([_HERE], checks, context, fanout_of(cluster), _LIMIT_S, also=list(parts.values()))
    outcomes = {name: of_hosts[_HERE] for name, of_hosts in findings.outcomes.items()}
    if outcomes[REACH].status is Status.PASS:
        del outcomes[REACH]
    found = {part: findings.facts.get(_HERE, {}).get(gather) for part, gather in parts.items()}
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return Health(
        facts={"system": system()} | {part: one for part, one in found.items() if isinstance(one, Mapping)},
        outcomes={part: one for part, one in found.items() if isinstance(one, Outcome)} | outcomes,
        versions=versions,
        environment=tuple(lint_environment(environment)),
    )


def system() -> dict[str, Any]:
    """Host, processor, memory, limits, network and processes of training. Nothing here can hang."""
    memory, swap, own = psutil.virtual_memory(), psutil.swap_memory(), psutil.Process()
    limits = {
        "open_files": psutil.RLIMIT_NOFILE,
        "locked_memory": psutil.RLIMIT_MEMLOCK,
        "processes": psutil.RLIMIT_NPROC,
    }
    name, shm = None, None
    with suppress(OSError):  # not every container has the file
        name = platform.freedesktop_os_release().get("PRETTY_NAME")
    with suppress(OSError):
        shm = psutil.disk_usage("/dev/shm")
    return {
        "host": socket.gethostname(),
        "system": name or platform.system(),
        "kernel": platform.release(),
        "uptime_s": time.time() - psutil.boot_time(),
        "load": os.getloadavg()[0],
        "cores": len(own.cpu_affinity()),
        "memory": {"total": memory.total, "available": memory.available},
        "swap": {"total": swap.total, "free": swap.free},
        "shared_memory": {"total": shm.total, "free": shm.free} if shm else None,
        "limits": {name: own.rlimit(kind)[0] for name, kind in limits.items()},
        "interfaces": [
            {"name": name, "state": "up" if link.isup else "down", "speed": link.speed or None, "mtu": link.mtu}
            for name, link in sorted(psutil.net_if_stats().items())
            if not name.startswith(_VIRTUAL)
        ],
        "training": _training(own),
    }


def _training(own: psutil.Process) -> list[dict[str, Any]]:
    """Processes that train, with their user and age; `parent` 1: the process that started them has ended."""
    ours = {own.pid, *(parent.pid for parent in own.parents())}
    found = []
    for process in psutil.process_iter(["pid", "ppid", "username", "cmdline", "create_time"]):
        info = process.info
        command = " ".join(info["cmdline"] or ())
        if info["pid"] not in ours and _TRAINING.search(command):
            age_s = time.time() - info["create_time"]
            of_process = {"pid": info["pid"], "user": info["username"], "age_s": age_s, "parent": info["ppid"]}
            found.append(of_process | {"command": command[:120]})
    return found


def _system(facts: Facts) -> Iterator[tuple[str, str]]:
    up = format_duration(facts["uptime_s"])
    yield "machine", f"{facts['host']}, {facts['system']}, Linux {facts['kernel']}, up {up}"
    yield "processor", f"{facts['cores']} cores, load {facts['load']:.1f}"
    for subject, room in (("memory", "memory"), ("swap", "swap"), ("/dev/shm", "shared_memory")):
        if facts[room] is None or not facts[room]["total"]:
            yield subject, "none"
            continue
        free = facts[room].get("available", facts[room].get("free"))
        yield subject, f"{format_bytes(free)} of {format_bytes(facts[room]['total'])} free"
    limits = facts["limits"]
    shown = {name: "unlimited" if value < 0 else f"{value:,}" for name, value in limits.items()}
    locked = shown["locked_memory"] if limits["locked_memory"] < 0 else format_bytes(limits["locked_memory"])
    yield "limits", f"open files {shown['open_files']}, locked memory {locked}, processes {shown['processes']}"
    for each in facts["interfaces"]:
        rate = "" if each["speed"] is None else f", {each['speed'] / 1000:g} Gbit/s"
        yield "network", f"{each['name']} {each['state']}{rate}, MTU {each['mtu']}"
    for each in facts["training"][:8]:
        left = "; its parent has ended" if each["parent"] == 1 else ""
        age = f"process {each['pid']} of {each['user']}, for {format_duration(each['age_s'])}{left}"
        yield "training", f"{age}: {escaped(each['command'])}"


def _mounts(facts: Facts) -> Iterator[tuple[str, str]]:
    for each in facts["mounts"]:
        words = f"{each['free_gb']:,.1f} of {each['total_gb']:,.1f} GB free, {each['type']}"
        words += ", read-only" if "ro" in each["options"].split(",") else ""
        yield "disk", f"{each['point']}: {words} ({', '.join(each['paths'])})"
    for path in facts["missing"]:
        yield "disk", f"{path}: is not there"


def _gpus(facts: Facts) -> Iterator[tuple[str, str]]:
    if facts["error"] is not None or not facts["gpus"]:
        yield "GPUs", f"{len(facts['gpus']) or 'none'}{'' if facts['error'] is None else ': ' + facts['error']}"
        return
    cuda = "" if facts["cuda"] is None else f", CUDA up to {facts['cuda'] // 1000}.{facts['cuda'] % 1000 // 10}"
    yield "GPUs", f"{len(facts['gpus'])}, driver {facts['driver'] or 'unknown'}{cuda}"
    for gpu in facts["gpus"]:
        yield "GPU", f"{gpu['index']}: {'lost: reboot the node, and look for Xid 79' if gpu['lost'] else _gpu(gpu)}"


def _gpu(gpu: Facts) -> str:
    used, total = gpu["memory_used"], gpu["memory_total"]
    parts = [f"{format_bytes(used)} of {format_bytes(total)} used"] if total else []
    words = (("utilization", "% busy"), ("temperature", "degrees C"), ("ecc_uncorrected", "uncorrected memory errors"))
    parts += [f"{gpu[fact]:g} {unit}" for fact, unit in words if gpu[fact]]
    users = [f"{each['pid']} ({(each['command'] or '?')[:40]})" for each in gpu["processes"] or ()]
    parts += [f"used by {', '.join(users[:8])}"] if users else []
    return f"{gpu['name'] or 'unknown'}: {', '.join(parts)}"
