"""The variables of a rank: what every training program knows, whichever program started it.

What the job's own environment says wins, but for a rank's numbers and the place where ranks meet.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.ranks.network import interface_to
from glmforge_ops.jobs.ranks.seats import Seat

NUMBERS = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "NODE_RANK",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RUN_ID",
    }
)
"""What would make a torchrun, or a rank, take itself for a part of another job."""


def rank_variables(
    assignment: Assignment, seat: Seat, inherited: Mapping[str, str], *, attempt: str, by: str, interface: str | None
) -> dict[str, str]:
    """The whole environment of a rank.

    Args:
        inherited: of this process.
        attempt: the attempt's number; ranks of another one that are still there do not join in.
        by: what started this process. torchrun serves the store where ranks meet, and says where.
        interface: between nodes, where it was found; None leaves the choice to the libraries.
    """
    given = dict(inherited) | assignment.environment
    count = assignment.ranks_per_node
    ours: dict[str, int | str] = {
        "RANK": seat.rank,
        "WORLD_SIZE": assignment.world_size,
        "LOCAL_RANK": seat.local_rank,
        "LOCAL_WORLD_SIZE": count,
        "GROUP_RANK": seat.node,
        "NODE_RANK": seat.node,
        "GROUP_WORLD_SIZE": len(assignment.nodes),
    }
    if by != "torchrun":
        ours["MASTER_ADDR"], ours["MASTER_PORT"] = assignment.address, assignment.port
        ours["TORCHELASTIC_RESTART_COUNT"] = attempt
        for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"):  # of a torchrun that started us all
            given.pop(name, None)
    defaults = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(_threads(assignment, given))}
    if interface is not None:
        defaults |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    if assignment.gpus_per_node and "SLURM_JOB_ID" not in given:  # Slurm shows a step the GPUs that are its own
        defaults["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(assignment.gpus_per_node)))
    return defaults | given | {name: str(value) for name, value in ours.items()}


def find_interface(assignment: Assignment) -> str | None:
    """As the assignment says, or of the route to where ranks meet."""
    return assignment.interface or interface_to(assignment.address)


def attempt_number(directory: Path) -> str:
    """Of an attempt's directory, attempts/0012: 12; 0 for a directory with another name."""
    return str(int(directory.name)) if re.fullmatch(r"[0-9]{1,9}", directory.name) else "0"


def _threads(assignment: Assignment, given: Mapping[str, str]) -> int:
    """CPUs of a rank: as asked for, else those of this process, which the ranks of the node share.

    A process that is bound to some of the node's CPUs has been given them for one rank by its starter.
    """
    if assignment.cpus_per_task is not None:
        return assignment.cpus_per_task
    text = given.get("SLURM_CPUS_PER_TASK", "")
    if text.isdecimal() and int(text):
        return int(text)
    usable = len(os.sched_getaffinity(0))
    shared = 1 if usable < (os.cpu_count() or 1) and "SLURM_LOCALID" in given else assignment.ranks_per_node
    return max(1, usable // shared)
