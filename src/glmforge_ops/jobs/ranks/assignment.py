"""What the ranks of an attempt run: the file `ranks.json`, written by a starter, read on every node.

A file rather than arguments: environments hold secrets, which a command line shows to every user of the machine.
"""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import psutil

from glmforge.errors import LaunchError
from glmforge.files import open_regular

FILE = "ranks.json"

NUMBERS = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID",
})  # fmt: skip
"""Variables that would make a torchrun, or a rank, part of another job."""


@dataclass(frozen=True)
class Assignment:
    """The ranks of an attempt: `ranks_per_node` on each of `nodes`, numbered node by node.

    Attributes:
        command: of every rank, which runs in `cwd`.
        environment: variables besides those that a rank gets anyway.
        secrets: names of further variables, whose values the supervisor has and no file.
        address, port: where ranks meet: an address of the first node that all nodes reach.
        interface: between nodes; None: that of the route to `address`.
        container: image that every rank runs in.
        grace_s: that ranks have to end by themselves after a signal.
        requeue: under Slurm: queue the job again if the supervisor's node is lost.
    """

    command: list[str]
    cwd: str
    nodes: list[str]
    ranks_per_node: int
    address: str
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    interface: str | None = None
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    container: str | None = None
    grace_s: float = 60.0
    requeue: bool = False

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Raises `LaunchError` if it is missing, or was written by another version."""
        path = directory / FILE
        try:
            with open_regular(path) as file:
                return cls(**json.loads(file.read()))
        except OSError as error:
            raise LaunchError(
                f"{path}: cannot be read here ({error.strerror}); put the jobs' directory on storage that all nodes see"
            ) from None
        except (ValueError, TypeError) as error:
            raise LaunchError(f"{path}: written by another version ({error}); start the attempt again") from None

    def write(self, directory: Path) -> None:
        write_private(directory / FILE, json.dumps(asdict(self)))


def write_private(path: Path, text: str) -> None:
    """A file for its owner only. A reader finds the old text or the new one."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def open_private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def rank_variables(
    ranks: Assignment, node: int, local: int, inherited: Mapping[str, str], *, attempt: str, interface: str | None
) -> dict[str, str]:
    """The whole environment of a rank: what every training program knows, whichever program started it.

    Settings of the job's own environment win, except for a rank's numbers and the place where ranks meet.

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
        ours |= {"SLURM_NPROCS": ranks.world_size, "SLURM_CPUS_PER_TASK": threads}
    elif ranks.gpus_per_node:  # Slurm shows a step the GPUs that are its own
        defaults["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(ranks.gpus_per_node)))
    return defaults | given | {name: str(value) for name, value in ours.items()}


def interface_to(address: str) -> str | None:
    """The interface of the route to an IP address or a name; None if there is no route."""
    own = own_address_towards(address)
    names = psutil.net_if_addrs().items() if own is not None else ()
    return next((name for name, rows in names if own in {row.address.partition("%")[0] for row in rows}), None)


def own_address_towards(address: str) -> str | None:
    """The address of this machine on the route to another, IPv4 first; None if there is no route.

    The host's own name is not looked up: in many an /etc/hosts it stands for 127.0.1.1. A socket that is "connected"
    for datagrams sends nothing.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                return str(probe.getsockname()[0])
        except (OSError, UnicodeError):
            continue
    return None


def slurm_job() -> str | None:
    """The job that this process is part of, for Slurm's commands; None outside of Slurm.

    A task of an array is named by its place: the job number of the last task is also that of the whole array, and a
    command that is given it acts on all tasks.
    """
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")
