"""Checks before a job is submitted: whether the run fits the GPUs by plan, and quick checks of the nodes.

The plan compares with the kind of GPU that was named, or that Slurm (`Gres=gpu:h200:8`) or nvidia-smi of this machine
reports. Nodes are checked where there is no scheduler: those of Slurm and PBS are not known before they are given.
"""

import re
import shutil
from collections.abc import Callable

from glmforge.config.launch import LaunchConfig
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import LaunchError
from glmforge.files import shown
from glmforge.observe.units import counted
from glmforge.plan.fit import Capacity, fits
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.hardware import ACCELERATORS, Accelerator, accelerator_named
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.health.checks.check import Context, Level, Status
from glmforge_ops.health.checks.examine import choose_checks, examine, grouped
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.hosts.machines import fanout_of, gres_of
from glmforge_ops.jobs.schedulers.base import ask
from glmforge_ops.jobs.script.amounts import megabytes
from glmforge_ops.jobs.script.hosts import cluster_of, hosts_of

_GRES = re.compile(r"(?:^|,)gpu:([A-Za-z][A-Za-z0-9_.-]*):\d+")
_MOST_SHOWN = 5

Progress = Callable[[float, str], None]


def check_fit(config: RunConfig, launch: LaunchConfig, gpu: str | None = None) -> str:
    """Raises `LaunchError` if the first phase cannot fit. Returns what it was compared with, in words."""
    # A later phase may be meant for another layout; training warns of it.
    layout = resolve_layout(config, launch.nodes * launch.ranks)
    accelerator = find_gpu(launch, gpu)
    if accelerator is not None:
        capacity = Capacity(accelerator.memory_bytes, f"{accelerator.name} has")
    elif launch.gpus_per_node:
        return "unknown kind of GPU: the plan was not compared with its memory; pass --gpu h100-80gb"
    elif launch.mem is not None and (memory := megabytes(launch.mem) << 20):  # 0: all that there is
        nodes = [range(first, first + launch.ranks) for first in range(0, layout.world_size, launch.ranks)]
        capacity = Capacity(memory, "which has", nodes, "of a node")
    else:
        return "without --mem the plan is not compared with the memory of the nodes"
    missing = fits(select_phase(config, config.phases[0].name), layout, capacity).missing
    if missing is not None:
        raise LaunchError(f"{missing}; pass --no-plan to submit anyway")
    return f"by plan it fits {accelerator.name if accelerator else 'the memory of its nodes'}"


def find_gpu(launch: LaunchConfig, named: str | None) -> Accelerator | None:
    """The kind of GPU of the job's nodes. Raises `LaunchError` if an unknown one was named."""
    if named is not None:
        found = accelerator_named(named)
        if found is None:
            known = ", ".join(row.name for row in ACCELERATORS)
            raise LaunchError(f"--gpu {shown(named)}: unknown; choose one of {known}")
        return found
    names: list[str] = []
    if launch.gpus_per_node and launch.launcher == "slurm":
        names = [name for gres in gres_of(launch.partition) for name in _GRES.findall(gres)]
    elif launch.gpus_per_node and launch.launcher == "local" and shutil.which("nvidia-smi") is not None:
        answer = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
        names = answer.stdout.splitlines() if answer.status == 0 else []
    kinds = {accelerator_named(name) for name in names}
    return kinds.pop() if len(kinds) == 1 else None


def check_nodes(launch: LaunchConfig, progress: Progress | None = None) -> str | None:
    """Raises `LaunchError`, which names what failed and where. Returns what was checked; None: nothing."""
    if launch.launcher in ("slurm", "pbs") or (launch.launcher == "local" and not launch.gpus_per_node):
        return None
    cluster = cluster_of(launch).model_copy(update={"gpus_per_node": launch.gpus_per_node})
    names = hosts_of(launch).names or ("localhost",)
    context = Context(cluster, Thresholds(cluster.thresholds), {name: HostLine(name) for name in names})
    checks = choose_checks(Level.QUICK, (), ())
    findings = examine(list(names), checks, context, fanout_of(cluster), progress=progress)
    failed = [
        f"{fold_hosts(group.hosts)}: {check}: {group.value}" + (f" ({group.fix})" if group.fix else "")
        for check, of_hosts in findings.outcomes.items()
        for group in grouped(of_hosts)
        if group.status is Status.FAIL
    ]
    if failed:
        rest = f"; and {len(failed) - _MOST_SHOWN} more" if len(failed) > _MOST_SHOWN else ""
        raise LaunchError(f"{'; '.join(failed[:_MOST_SHOWN])}{rest}; fix it, or pass --no-check")
    return f"{counted(len(names), 'node')} checked"
