"""What is looked at before a job is submitted: whether the run fits the GPUs by plan, and whether the nodes are sound.

The plan compares with the kind of GPU that was named, or that Slurm (`Gres=gpu:h200:8`) or nvidia-smi of this machine
tells. A kind that is not known is not compared with anything, and that is said. Nodes are asked before they are used
where there is no scheduler between: those of Slurm and PBS are not known before they are given.
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
from glmforge.runtime.memory import usable_memory
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
    accelerator = find_gpu(launch, gpu)
    if launch.gpus_per_node and accelerator is None:
        return "unknown kind of GPU: the plan was not compared with its memory; pass --gpu h100-80gb"
    size = _capacity(launch, accelerator)
    if size is None:
        return "unknown memory of the nodes: the plan was not compared with it; pass --mem"
    # A later phase may be meant for another layout; training warns of it.
    layout = resolve_layout(config, launch.nodes * launch.ranks)
    if accelerator is not None:
        capacity = Capacity(size, f"{accelerator.name} has")
    else:
        nodes = [range(first, first + launch.ranks) for first in range(0, layout.world_size, launch.ranks)]
        capacity = Capacity(size, "which has", nodes, "of a node")
    missing = fits(select_phase(config, config.phases[0].name), layout, capacity).missing
    if missing is not None:
        raise LaunchError(f"{missing}; pass --no-plan to submit anyway")
    return f"by plan it fits {accelerator.name if accelerator else 'the memory of its nodes'}"


def find_gpu(launch: LaunchConfig, named: str | None) -> Accelerator | None:
    """The kind of GPU of the job's nodes. Raises `LaunchError` if one was named that is not known."""
    if named is not None:
        found = accelerator_named(named)
        if found is None:
            known = ", ".join(row.name for row in ACCELERATORS)
            raise LaunchError(f"--gpu {shown(named)}: unknown; choose one of {known}")
        return found
    if not launch.gpus_per_node:
        return None
    names = _names_here(launch)
    kinds = {accelerator_named(name) for name in names}
    return kinds.pop() if len(kinds) == 1 else None


def check_nodes(launch: LaunchConfig, progress: Progress | None = None) -> str | None:
    """Raises `LaunchError`, which names what failed and where. Returns what was looked at; None: nothing could be."""
    if launch.launcher in ("slurm", "pbs") or (launch.launcher == "local" and not launch.gpus_per_node):
        return None
    cluster = cluster_of(launch).model_copy(update={"gpus_per_node": launch.gpus_per_node})
    names = hosts_of(launch).names or ("localhost",)
    checks = choose_checks(Level.QUICK, (), ())
    context = Context(cluster, Thresholds(cluster.thresholds), {name: HostLine(name) for name in names})
    findings = examine(list(names), checks, context, fanout_of(cluster), progress=progress)
    told = []
    for check, of_hosts in findings.outcomes.items():
        for group in grouped(of_hosts):
            if group.status is Status.FAIL:
                fix = f" ({group.fix})" if group.fix else ""
                told.append(f"{fold_hosts(group.hosts)}: {check}: {group.value}{fix}")
    if told:
        rest = f"; and {len(told) - _MOST_SHOWN} more" if len(told) > _MOST_SHOWN else ""
        raise LaunchError(f"{'; '.join(told[:_MOST_SHOWN])}{rest}; fix it, or pass --no-check")
    return f"{counted(len(names), 'node')} checked"


def _names_here(launch: LaunchConfig) -> list[str]:
    if launch.launcher == "slurm":
        return [name for gres in gres_of(launch.partition) for name in _GRES.findall(gres)]
    if launch.launcher == "local" and shutil.which("nvidia-smi") is not None:
        answer = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
        return answer.stdout.splitlines() if answer.status == 0 else []
    return []


def _capacity(launch: LaunchConfig, accelerator: Accelerator | None) -> int | None:
    """Bytes: of a GPU, or of a node without GPUs."""
    if accelerator is not None:
        return accelerator.memory_bytes
    if launch.mem is not None:
        return megabytes(launch.mem) << 20 or None  # 0: all that there is
    return usable_memory() if launch.launcher == "local" else None
