"""The processes of a run: who am I, where do I lie on each axis, with whom do I communicate along it.

One process without a launcher is a world of size 1: the same code runs, and communication along an axis of size 1 is
skipped. Several find each other as `glmforge.runtime.meeting` says. The process group lives on a store of its own per
restart attempt: with torchrun's default store restarted workers read the stale addresses of the killed ones and hang
(seen with gloo, torch 2.13).

The ranks are seen in three ways (see `glmforge.config.layout`):

    dense    pp x dp_replicate x fsdp x tp          what shards a layer's matrices
    expert   pp x dp_replicate x efsdp x ep         what shards its experts
    tokens   pp x dp_replicate x dp_shard x cp x tp what shards the batch

The first two are DeviceMeshes. Every axis of the three has a process group, and so have two unions of axes: `stage`,
all ranks that hold the same layers, and `expert_stage`, all that hold the same experts.

On CUDA the default group is bound to the rank's GPU: NCCL connects at once, so that a rank that cannot is found at the
start, and all other groups are split off it (`glmforge.parallel.groups`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from glmforge.config.layout import Layout
from glmforge.errors import ConfigError, GlmforgeError
from glmforge.parallel.groups import axis_groups, meshes_of
from glmforge.parallel.peers import PeerLostError, Peers
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.runtime.meeting import Facts, open_store, reopen_store, roll_call


@dataclass(frozen=True)
class World:
    """This process among the others.

    `meshes` holds "dense" and "expert", `groups` the groups of axes and unions of two ranks or more; both are empty for
    a single process.
    """

    rank: int
    size: int
    device: torch.device
    layout: Layout = field(default_factory=Layout)
    meshes: dict[str, DeviceMesh] = field(default_factory=dict)
    groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)

    @classmethod
    def single(cls, device: torch.device | str | None = None) -> Self:
        """A world of one process."""
        return cls(0, 1, torch.device(device) if device else default_device())

    @classmethod
    def join(cls, layout: Layout, device: torch.device, timeout: timedelta | None = None) -> Self:
        """The world of an initialised process group, laid out as `layout`. All ranks call this together.

        `timeout` is that of collectives along an axis; None is torch's default.
        """
        groups = axis_groups(layout, timeout)
        meshes = meshes_of(layout, device, groups, timeout)
        return cls(dist.get_rank(), dist.get_world_size(), device, layout, meshes, groups)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @cached_property
    def coordinates(self) -> dict[str, int]:
        """Where this rank lies on each axis of all views."""
        return self.layout.coordinates(self.rank)

    @property
    def data_rank(self) -> int:
        """Which of the `layout.data_ranks` shares of each batch this rank reads."""
        return self.layout.data_rank(self.rank)

    def axis_size(self, axis: str) -> int:
        return self.layout.size(axis)

    def axis_rank(self, axis: str) -> int:
        return self.coordinates[axis]

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """The ranks along an axis (or a union of axes) around this one; None where that is only this one."""
        return self.groups.get(axis)

    def sum(self, tensor: Tensor, *axes: str) -> Tensor:
        """Sum over the ranks along `axes` (over all ranks if none is named), in place; returns the tensor."""
        if self.size == 1:
            return tensor
        if not axes:
            dist.all_reduce(tensor)
        for axis in axes:
            group = self.group(axis)
            if group is not None:
                dist.all_reduce(tensor, group=group)
        return tensor


def default_device() -> torch.device:
    """This process's GPU where there is one, else the CPU. A launcher may show each process its own GPU only."""
    if torch.cuda.is_available():
        return torch.device("cuda", LaunchEnvironment.read().local_rank if torch.cuda.device_count() > 1 else 0)
    return torch.device("cpu")


@contextmanager
def join_world(
    layout: Layout, timeout_s: int, *, wait_s: int | None = None, facts: Facts = lambda: {}
) -> Iterator[World]:
    """Join the processes that the launcher started; leave them at the end.

    A process group that exists already is used and left alone.

    Args:
        layout: of all processes.
        timeout_s: of a collective, after which it fails.
        wait_s: how long the processes wait for each other to come; None is `timeout_s`.
        facts: what must agree on all nodes.

    Raises `MeetingError` if they do not meet, or do not agree.
    """
    launch = LaunchEnvironment.read()
    size = launch.world_size
    if layout.world_size != size:
        raise ConfigError(
            f"parallel: the layout has {layout.world_size} ranks, but the launcher started {size}; set dp_shard: "
            f"auto, or start {layout.world_size} processes"
        )
    if size == 1:
        yield World(0, 1, default_device(), layout)
        return
    device = default_device()
    timeout = timedelta(seconds=timeout_s)
    if dist.is_initialized():
        yield World.join(layout, device, timeout)
        return
    wait_s = timeout_s if wait_s is None else wait_s
    store = open_store(launch, wait_s=wait_s, timeout_s=timeout_s)
    roll_call(store, launch, facts, wait_s=wait_s)
    peers = _introduced(store, launch, timeout_s)
    with _explained(peers):
        _init_process_group(store, launch, device, timeout)
        try:
            peers.meet()
            yield World.join(layout, device, timeout)
        finally:
            dist.destroy_process_group()


@contextmanager
def _explained(peers: Peers) -> Iterator[None]:
    """The cause of this rank's failure is reported to the others; another rank's failure becomes one line that names
    it.
    """
    try:
        yield
    except PeerLostError:
        raise
    except Exception as error:
        lost = peers.explain(error)
        if lost is not None:
            raise lost from error
        peers.say_last_words(str(error) if isinstance(error, GlmforgeError) else f"{type(error).__name__}: {error}")
        raise
    finally:
        peers.leave()


def _introduced(store: dist.Store, launch: LaunchEnvironment, timeout_s: int) -> Peers:
    """This rank among the others, to which it has said who it is."""
    peers = Peers(
        dist.PrefixStore("peers", store),
        launch.rank,
        launch.world_size,
        reconnect=lambda: dist.PrefixStore("peers", reopen_store(launch, timeout_s=timeout_s)),
        kept_by_rank_zero=not launch.agent_serves,
    )
    peers.introduce()
    return peers


def _init_process_group(store: dist.Store, launch: LaunchEnvironment, device: torch.device, timeout: timedelta) -> None:
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_cuda else "gloo",
        store=store,
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timeout,
        device_id=device if on_cuda else None,
    )
