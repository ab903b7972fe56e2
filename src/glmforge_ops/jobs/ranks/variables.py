"""The variables of a rank: what every training program knows, whichever program started it.

What the job's own environment says wins, except for a rank's numbers and the place where ranks meet.
"""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from glmforge_ops.jobs.ranks.assignment import Assignment

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
    ranks: Assignment, node: int, local: int, inherited: Mapping[str, str], *, attempt: str, interface: str | None
) -> dict[str, str]:
    """The whole environment of a rank.

    Args:
        node, local: the node's place among the attempt's, and the rank's on it.
        inherited: of this process.
        attempt: the attempt's number; ranks of another one that are still there do not join in.
        interface: between nodes; None leaves the choice to the libraries.
    """
    given = {name: value for name, value in inherited.items() if name not in NUMBERS} | ranks.environment
    rank = node * ranks.ranks_per_node + local
    ours: dict[str, int | str] = {
        "RANK": rank,
        "WORLD_SIZE": ranks.world_size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": ranks.ranks_per_node,
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "GROUP_WORLD_SIZE": len(ranks.nodes),
        "MASTER_ADDR": ranks.address,
        "MASTER_PORT": ranks.port,
        "TORCHELASTIC_RESTART_COUNT": attempt,
    }
    threads = ranks.cpus_per_task or max(1, len(os.sched_getaffinity(0)) // ranks.ranks_per_node)
    defaults = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
    if interface is not None:
        defaults |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    if "SLURM_JOB_ID" in given:  # Slurm started one task per node; programs that read its numbers get the rank's
        ours |= {"SLURM_PROCID": rank, "SLURM_LOCALID": local, "SLURM_NTASKS": ranks.world_size}
        ours |= {"SLURM_NPROCS": ranks.world_size, "SLURM_CPUS_PER_TASK": ranks.cpus_per_task or threads}
    elif ranks.gpus_per_node:  # Slurm shows a step the GPUs that are its own
        defaults["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(ranks.gpus_per_node)))
    return defaults | given | {name: str(value) for name, value in ours.items()}


def interface_to(address: str) -> str | None:
    """The interface of the route to an IP address or a name; None if there is no route."""
    own = own_address_towards(address)
    if own is None:
        return None
    names = psutil.net_if_addrs().items()
    return next((name for name, rows in names if own in {row.address.partition("%")[0] for row in rows}), None)


def own_address_towards(address: str) -> str | None:
    """The address of this machine on the route to another, IPv4 first; None if there is no route.

    The host's own name is not asked: in many an /etc/hosts it stands for 127.0.1.1. A socket that is "connected" for
    datagrams sends nothing.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                return str(probe.getsockname()[0])
        except (OSError, UnicodeError):
            continue
    return None


def attempt_number(directory: Path) -> str:
    """Of an attempt's directory, attempts/0012: 12; 0 for a directory with another name."""
    return str(int(directory.name)) if re.fullmatch(r"[0-9]{1,9}", directory.name) else "0"


def slurm_job() -> str | None:
    """The job that this process is part of, for Slurm's commands; None outside of Slurm.

    A task of an array is named by its place: the job number of the last task is also that of the whole array, and a
    command that is given it acts on all tasks.
    """
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")
