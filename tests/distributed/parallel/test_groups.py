"""Every axis has one group, made once; where the default group is bound to a device they are split off it."""

from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_timeout, _world

from glmforge.config.layout import Layout
from glmforge.parallel import world as module
from glmforge.parallel.world import World
from glmforge.runtime.launch import LaunchEnvironment
from helpers.distributed import run_ranks

CPU = torch.device("cpu")
LARGE = Layout(pp=8, dp_replicate=2, dp_shard=64, tp=8, ep=64)
RANK = 4711
TIMEOUT = timedelta(seconds=77)


def fake_world(layout: Layout) -> World:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=layout.world_size)
    return World.join(layout, CPU, TIMEOUT)


def members(world: World) -> dict[str, list[int]]:
    return {axis: dist.get_process_group_ranks(group) for axis, group in world.groups.items()}


def rank_of_many() -> tuple[int, dict[str, list[int]], dict[str, Any]]:
    world = fake_world(LARGE)
    meshes = {name: (mesh.mesh_dim_names, mesh.shape, mesh.get_coordinate()) for name, mesh in world.meshes.items()}
    return len(_world.pg_names), members(world), meshes


def test_a_rank_of_8192_has_ten_groups() -> None:
    """Five meshes by `init_device_mesh` would make 19."""
    ((num_groups, groups, meshes),) = run_ranks(rank_of_many, 1, init_group=False)
    assert num_groups == 1 + len(groups)  # and the default one
    assert set(groups) == {"pp", "dp_replicate", "fsdp", "tp", "efsdp", "ep", "dp_shard", "stage", "expert_stage"}
    where = LARGE.coordinates(RANK)
    for axis, ranks in groups.items():
        assert RANK in ranks
        if axis in where:
            assert len(ranks) == LARGE.size(axis)
            assert [LARGE.coordinates(rank)[axis] for rank in ranks] == list(range(len(ranks)))
    assert meshes["dense"] == (
        ("pp", "dp_replicate", "fsdp", "tp"),
        (8, 2, 64, 8),
        tuple(where[axis] for axis in ("pp", "dp_replicate", "fsdp", "tp")),
    )
    assert meshes["expert"][2] == tuple(where[axis] for axis in ("pp", "dp_replicate", "efsdp", "ep"))


def rank_that_splits() -> tuple[list[list[list[int]]], list[timedelta], int]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    layout = Layout(dp_shard=4, tp=2, ep=4)
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=layout.world_size)
    made = dist.new_group
    calls: list[list[list[int]]] = []
    timeouts: list[timedelta] = []

    def split(*, split_ranks: list[list[int]], timeout: timedelta, group_desc: str) -> dist.ProcessGroup:
        calls.append(split_ranks)
        timeouts.append(timeout)
        return made(next(ranks for ranks in split_ranks if 5 in ranks))

    dist.group.WORLD.bound_device_id = torch.device("cuda:5")
    dist.split_group, dist.new_group = split, None  # type: ignore[assignment]
    world = World.join(layout, CPU, TIMEOUT)
    return calls, timeouts, world.axis_size("ep")


def test_nccl_is_asked_once_per_axis_for_all_its_groups() -> None:
    ((calls, timeouts, _),) = run_ranks(rank_that_splits, 1, init_group=False)
    # fsdp, tp, efsdp, ep, dp_shard, expert_stage, and every rank alone; pp x dp_replicate x cp = 1, and stage is all.
    assert len(calls) == 7
    assert all(sorted(chain.from_iterable(groups)) == list(range(8)) for groups in calls)
    assert set(timeouts) == {TIMEOUT}


def rank_timeouts() -> list[float]:
    world = World.join(Layout(dp_shard=2, tp=2), CPU, TIMEOUT)
    return [group._get_backend(CPU).options._timeout.total_seconds() for group in (world.groups["tp"],)]


def test_collectives_along_an_axis_have_the_timeout_of_the_job() -> None:
    assert _get_default_timeout(dist.Backend("gloo")) != TIMEOUT
    assert run_ranks(rank_timeouts, 4) == [[77.0]] * 4


@pytest.mark.parametrize(("device", "bound"), [("cuda:3", torch.device("cuda:3")), ("cpu", None)])
def test_the_default_group_is_bound_to_the_gpu(device: str, bound: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("set_device", device)))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: calls.append((backend, options)))
    launch = LaunchEnvironment.read({"RANK": "3", "WORLD_SIZE": "4"})
    module._init_process_group(dist.HashStore(), launch, torch.device(device), TIMEOUT)
    *before, (backend, options) = calls
    assert before == ([("set_device", bound)] if bound else [])
    assert backend == ("nccl" if bound else "gloo")
    assert (options["device_id"], options["timeout"], options["rank"]) == (bound, TIMEOUT, 3)
