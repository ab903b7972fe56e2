"""The quick look at one machine: its facts, what the quick checks say of them, and its environment variables.

File systems, GPUs and checks are looked at in processes of their own with a time limit: a dead file server or a broken
GPU costs the part that it concerns, not the page.
"""

import os
import platform
import re
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from glmforge.config.cluster import ClusterConfig
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.environment.lint import Finding, lint_environment
from glmforge_ops.health.checks.check import CHECKS, Context, Facts, Level, Outcome, Status
from glmforge_ops.health.checks.examine import REACH, choose_checks, examine
from glmforge_ops.health.checks.gpu import gpus
from glmforge_ops.health.checks.storage import mounts
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.machines import fanout_of, printed_by

PACKAGES = ("glmforge", "torch", "numpy", "triton", "tokenizers", "transformers", "deepspeed", "nvidia-nccl-cu12")
"""Whose versions are shown where they are installed."""
PARTS = {"disks": mounts, "gpus": gpus}
"""What is looked at with a time limit."""
_OF_A_LOGIN = ("environment", "versions")
"""Checks of what a login there would have; here the environment and the Python of this process count."""
_LIMIT_S, _REPORT_S = 10.0, 180.0  # DeepSpeed imports torch and asks a compiler about every operator
_HERE = LOCAL[0]
_TRAINING = re.compile(r"(^|[\s/])(torchrun|deepspeed|glmforge train)(\s|$)|torch\.distributed\.(run|launch)")
_VIRTUAL = ("lo", "docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "cilium", "dummy", "ifb")


@dataclass(frozen=True)
class Health:
    """All that a look found out.

    Attributes:
        system: of the machine.
        facts: by part; one that gave none is missing, and in `lost`.
        lost: by part, why there are no facts.
        outcomes: verdicts of the quick checks.
        versions: of packages in this Python.
    """

    system: Facts
    facts: Mapping[str, Facts]
    lost: Mapping[str, str]
    outcomes: Mapping[str, Outcome]
    versions: Mapping[str, str]
    environment: tuple[Finding, ...] = field(default=())

    def count(self, status: Status) -> int:
        """Verdicts of a kind: of checks, of each variable that is wrong, or of the environment that is right."""
        severities = {Status.FAIL: "error", Status.WARNING: "warning"}
        found = sum(outcome.status is status for outcome in self.outcomes.values())
        found += status is Status.PASS and not self.environment
        found += len(self.lost) if status is Status.FAIL else 0
        return found + sum(finding.severity == severities.get(status) for finding in self.environment)

    def exit_status(self, strict: bool) -> int:
        """0 if nothing failed; `strict`: and nothing is to be warned of."""
        return 1 if self.count(Status.FAIL) or (strict and self.count(Status.WARNING)) else 0


def look(cluster: ClusterConfig | None = None, environment: Mapping[str, str] = os.environ) -> Health:
    """Look at this machine; without a `cluster` no more is expected of it than what it has."""
    if cluster is None:
        cluster = ClusterConfig(nodes=[_HERE], gpus_per_node=len(list(Path("/dev").glob("nvidia[0-9]*"))))
    alone = {check.name for check in CHECKS if check.gather is not None and check.name.split(".")[0] not in _OF_A_LOGIN}
    checks = [check for check in choose_checks(Level.QUICK) if check.name in alone]
    context = Context(cluster, Thresholds(cluster.thresholds))
    findings = examine([_HERE], checks, context, fanout_of(cluster), _LIMIT_S, also=list(PARTS.values()))
    outcomes = {name: of_hosts[_HERE] for name, of_hosts in findings.outcomes.items()}
    reached = outcomes.pop(REACH)
    told = {part: findings.facts.get(_HERE, {}).get(gather, reached.value) for part, gather in PARTS.items()}
    return Health(
        system=system(),
        facts={part: found for part, found in told.items() if not isinstance(found, str)},
        lost={part: found for part, found in told.items() if isinstance(found, str)},
        outcomes=outcomes if reached.status is Status.PASS else {REACH: reached, **outcomes},
        versions=installed_versions(),
        environment=tuple(lint_environment(environment)),
    )


def installed_versions() -> dict[str, str]:
    """Of the packages that are installed; nothing is imported."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def deepspeed_report() -> str:
    """What DeepSpeed says of its compilers and operators: the text of `ds_report`. Raises `HostError`."""
    beside, leave_out = Path(sys.executable).with_name("ds_report"), "leave --deepspeed out"
    program = str(beside) if beside.exists() else "ds_report"
    missing = f"pip install deepspeed, or {leave_out}"
    report = printed_by(program, limit_s=_REPORT_S, missing=missing, otherwise=leave_out)
    return re.sub(r"\x1b\[[0-9;]*m", "", report)


def system() -> dict[str, Any]:
    """Host, processor, memory, limits, network and processes of training. Nothing here can hang."""
    memory, swap, shm = psutil.virtual_memory(), psutil.swap_memory(), os.statvfs("/dev/shm")
    own = psutil.Process()
    return {
        "host": socket.gethostname(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME"),
        "kernel": platform.release(),
        "uptime_s": time.time() - psutil.boot_time(),
        "load": os.getloadavg()[0],
        "cores": len(own.cpu_affinity()),
        "memory": {"total": memory.total, "available": memory.available},
        "swap": {"total": swap.total, "free": swap.free},
        "shared_memory": {"total": shm.f_blocks * shm.f_frsize, "free": shm.f_bavail * shm.f_frsize},
        "limits": {
            name: own.rlimit(kind)[0]
            for name, kind in (
                ("open_files", psutil.RLIMIT_NOFILE),
                ("locked_memory", psutil.RLIMIT_MEMLOCK),
                ("processes", psutil.RLIMIT_NPROC),
            )
        },
        "interfaces": [
            {"name": name, "state": "up" if link.isup else "down", "speed": link.speed or None, "mtu": link.mtu}
            for name, link in sorted(psutil.net_if_stats().items())
            if not name.startswith(_VIRTUAL)
        ],
        "training": _training(own),
    }


def _training(own: psutil.Process) -> list[dict[str, Any]]:
    """Processes that train, with their user and age; `parent` 1: what had started them has ended."""
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
