"""What a launcher tells each process of a job: its rank, how many there are, and where they meet.

Two launchers are known by their variables: torchrun (RANK, WORLD_SIZE, ...; batch scripts set the same by hand), and
Slurm's `srun`, whose tasks are ranks as they are:

    srun --nodes=2 --ntasks-per-node=8 glmforge train run.yaml

The deepspeed launcher sets torchrun's, but for LOCAL_SIZE and CROSS_SIZE (processes of a node, nodes); it also hands
each process its --local_rank, which the command line ignores.

torchrun's variables win, since it may itself be started by srun. Some of them without the others is a job that would
be trained by several processes that know nothing of each other: refused. A process without a launcher is rank 0 of one.

Under srun the ranks meet at the step's first node, where Slurm puts the first task unless `--distribution=arbitrary`
says otherwise, on a port made of the numbers of job and step. MASTER_ADDR and MASTER_PORT say something else.
"""

import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from glmforge.errors import ConfigError

HOW_TO_START = (
    "start with 'torchrun --nproc-per-node N -m glmforge train CONFIG' or 'srun --ntasks N glmforge train CONFIG', or "
    "set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process"
)
FLIGHT_RECORDER_EVENTS = "2000"
"""Collectives that PyTorch remembers: those of the last steps, at some hundred bytes each."""

_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
"""Below the ports that Linux gives to outgoing connections."""


@dataclass(frozen=True)
class LaunchEnvironment:
    """The process among those of its job, and the address at which they meet.

    `attempt` counts the launcher's restarts; `agent_serves`: whether the launcher itself serves the store there;
    `address_is_node`: whether the address is Slurm's name of a node, which the network may not know.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    num_nodes: int = 1
    address: str | None = None
    port: int | None = None
    attempt: str = "0"
    agent_serves: bool = False
    address_is_node: bool = False

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """As the launcher says. Raises `ConfigError` if it says only a part, or what cannot be."""
        if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & environment.keys():
            return cls._of_torchrun(environment)
        if {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"} <= environment.keys():  # a batch script itself has no such step
            return cls._of_slurm_task(environment)
        return cls()

    @classmethod
    def _of_torchrun(cls, environment: Mapping[str, str]) -> Self:
        """A launcher that does not tell of nodes has one."""
        for name in ("RANK", "WORLD_SIZE"):
            if name not in environment:
                others = [other for other in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if other in environment]
                raise ConfigError(f"{name} is not set, but {' and '.join(others)} is: {HOW_TO_START}")
        rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        if rank >= world_size:
            raise ConfigError(f"RANK = {rank} is not less than WORLD_SIZE = {world_size}: {HOW_TO_START}")
        local_world_size = _number(environment, "LOCAL_WORLD_SIZE", _number(environment, "LOCAL_SIZE", world_size))
        num_nodes = _number(environment, "CROSS_SIZE", world_size // max(local_world_size, 1))
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=_number(environment, "LOCAL_RANK", rank % max(local_world_size, 1)),
            local_world_size=local_world_size,
            num_nodes=_number(environment, "GROUP_WORLD_SIZE", num_nodes),
            address=environment.get("MASTER_ADDR"),
            port=_number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else None,
            attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
            agent_serves=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @classmethod
    def _of_slurm_task(cls, environment: Mapping[str, str]) -> Self:
        world_size, num_nodes = (
            _number(environment, "SLURM_STEP_NUM_TASKS"),
            _number(environment, "SLURM_STEP_NUM_NODES"),
        )
        tasks = tasks_of_nodes(environment["SLURM_STEP_TASKS_PER_NODE"])
        step = 17 * _number(environment, "SLURM_JOB_ID") + _number(environment, "SLURM_STEP_ID")
        return cls(
            rank=_number(environment, "SLURM_PROCID"),
            world_size=world_size,
            local_rank=_number(environment, "SLURM_LOCALID"),
            local_world_size=tasks[_number(environment, "SLURM_NODEID")],
            num_nodes=num_nodes,
            address=environment.get("MASTER_ADDR", first_node(environment["SLURM_STEP_NODELIST"])),
            port=_number(environment, "MASTER_PORT", _FIRST_PORT + step % _NUM_PORTS),
            attempt=environment.get("SLURM_RESTART_COUNT", "0"),
            address_is_node="MASTER_ADDR" not in environment,
        )

    @property
    def is_main(self) -> bool:
        """Whether this is the process that speaks to the user."""
        return self.rank == 0

    @property
    def is_first_of_node(self) -> bool:
        """Whether this is the process of its node that works for the others."""
        return self.local_rank == 0

    def meeting_point(self) -> tuple[str, int]:
        """The address and port at which the ranks meet. Raises `ConfigError` if the launcher does not give them."""
        for name, value in (("MASTER_ADDR", self.address), ("MASTER_PORT", self.port)):
            if value is None:
                raise ConfigError(f"{name} is not set, but WORLD_SIZE is {self.world_size}: {HOW_TO_START}")
        assert self.address is not None
        assert self.port is not None
        return address_of_node(self.address) if self.address_is_node else self.address, self.port


def address_of_node(name: str) -> str:
    """Where a node is reached: by its name, or, where the network does not know that, by the address that Slurm uses.

    The controller is asked in the second case only: thousands of ranks may look for the same node at once. Raises
    `ConfigError` if it does not know either.
    """
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror:
        pass
    else:
        return name
    try:
        command = ["scontrol", "show", "node", "-o", name]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        answer = ""
    found = re.search(r"\bNodeAddr=(\S+)", answer)
    if found is None:
        raise ConfigError(
            f"the job's first node, {name}, is known neither to the network nor to scontrol: set MASTER_ADDR to its "
            "address"
        )
    return found[1]


def first_node(nodes: str) -> str:
    """The first of a list of nodes as Slurm writes it: gpu003 of "gpu[003-010,12],cpu1"."""
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", nodes).partition(",")[0]


def tasks_of_nodes(counts: str) -> list[int]:
    """Tasks of each node as Slurm writes them: [8, 8, 4] of "8(x2),4"."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [int(count) for count, times in found for _ in range(int(times or 1))]


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Not negative. Without a default the variable is there."""
    text = environment[name] if default is None else environment.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name} = {text!r} is not a number: {HOW_TO_START}")
    return int(text)
