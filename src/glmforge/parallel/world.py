"""The processes of a run: who am I, on which device, and the one collective the trainer itself needs.

One process without a launcher is a world of size 1: the same code runs, communication is skipped here and nowhere
else. Under torchrun the process group lives on a store of its own per restart attempt: with torchrun's default store
restarted workers read the stale addresses of the killed ones and hang (seen with gloo, torch 2.13).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from glmforge.errors import ConfigError


@dataclass(frozen=True)
class World:
    """This process among the others. `mesh` has the axes `dp_replicate` and `dp_shard`; None for a single process."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None

    @classmethod
    def single(cls, device: torch.device | str | None = None) -> Self:
        """A world of one process."""
        return cls(0, 1, torch.device(device) if device else default_device(), None)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place; returns the tensor."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor


def default_device() -> torch.device:
    """This process's GPU where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def world_size_from_environment() -> int:
    """Number of processes that the launcher started (1 without a launcher)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def join_world(dp_replicate: int, dp_shard: int, timeout_s: int) -> Iterator[World]:
    """Join the processes that the launcher started; leave them at the end.

    A process group that exists already is used and left alone.
    """
    size = world_size_from_environment()
    if dp_replicate * dp_shard != size:
        raise ConfigError(
            f"parallel: dp_replicate {dp_replicate} x dp_shard {dp_shard} is not the world size {size}; "
            "set dp_shard: auto or start the right number of processes"
        )
    if size == 1:
        yield World.single()
        return
    device = default_device()
    joined_here = not dist.is_initialized()
    if joined_here:
        _init_process_group(size, device, timeout_s)
    try:
        mesh = init_device_mesh(device.type, (dp_replicate, dp_shard), mesh_dim_names=("dp_replicate", "dp_shard"))
        yield World(dist.get_rank(), size, device, mesh)
    finally:
        if joined_here:
            dist.destroy_process_group()


def _init_process_group(size: int, device: torch.device, timeout_s: int) -> None:
    environment = os.environ
    timeout = timedelta(seconds=timeout_s)
    rank = int(environment["RANK"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # torchrun's agent already serves a store at this address; without it rank 0 serves one.
    agent_serves = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        world_size=size,
        is_master=rank == 0 and not agent_serves,
        timeout=timeout,
    )
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.PrefixStore(f"glmforge/attempt-{attempt}", store),
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
