"""The process groups of a layout: each made once, for any number of meshes it appears in.

`init_device_mesh` makes a group for every axis of every mesh, those of size one and those of an earlier mesh included.
With NCCL each is a communicator with buffers of its own on every GPU. Here an axis has one group, all axes of size one
share a group of this rank alone, and meshes are assembled from them (`DeviceMesh.from_group`).

Where the default group is bound to a device (NCCL, see `glmforge.parallel.world`), the groups along an axis are split
off it by one collective call of all ranks, `ncclCommSplit`; making them one after another would take as many calls as
there are groups, 1,024 for tp = 8 on 8,192 ranks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from glmforge.config.layout import AXES, Layout

MESHES = {
    "dense": ("pp", "dp_replicate", "fsdp", "tp"),
    "expert": ("pp", "dp_replicate", "efsdp", "ep"),
}
_VIEWS = MESHES | {"tokens": AXES, "stages": ("pp", "stage"), "expert_stages": ("pp", "expert_stage", "ep")}
_VIEW_OF_AXIS = {
    "pp": "dense",
    "dp_replicate": "dense",
    "fsdp": "dense",
    "tp": "dense",
    "efsdp": "expert",
    "ep": "expert",
    "dp_shard": "tokens",
    "cp": "tokens",
    "stage": "stages",
    "expert_stage": "expert_stages",
}


def axis_groups(layout: Layout, timeout: timedelta | None) -> dict[str, dist.ProcessGroup]:
    """The group of this rank along every axis, and union of axes, that has two ranks or more. Collective."""
    return {
        axis: _own_group(axis, _neighbours(layout, axis), timeout) for axis in _VIEW_OF_AXIS if _size(layout, axis) > 1
    }


def meshes_of(
    layout: Layout, device: torch.device, groups: dict[str, dist.ProcessGroup], timeout: timedelta | None
) -> dict[str, DeviceMesh]:
    """The meshes that parameters are laid on, by name, assembled from `groups`. Collective."""
    single = {axis for axes in MESHES.values() for axis in axes if axis not in groups}
    if single:
        alone = _own_group("alone", torch.arange(layout.world_size)[:, None], timeout)
        groups = groups | dict.fromkeys(single, alone)
    return {
        name: DeviceMesh.from_group(
            [groups[axis] for axis in axes], device.type, _grid(layout, name), mesh_dim_names=axes
        )
        for name, axes in MESHES.items()
    }


def _size(layout: Layout, axis: str) -> int:
    unions = {"stage": layout.stage_ranks, "expert_stage": layout.stage_ranks // layout.ep}
    return unions[axis] if axis in unions else layout.size(axis)


def _grid(layout: Layout, view: str) -> Tensor:
    """All ranks, with a dim for each axis of the view."""
    return torch.arange(layout.world_size).view([_size(layout, axis) for axis in _VIEWS[view]])


def _neighbours(layout: Layout, axis: str) -> Tensor:
    """[groups, members]: the ranks of every group along an axis."""
    view = _VIEW_OF_AXIS[axis]
    return _grid(layout, view).movedim(_VIEWS[view].index(axis), -1).flatten(0, -2)


def _own_group(name: str, ranks_of_groups: Tensor, timeout: timedelta | None) -> dist.ProcessGroup:
    """This rank's group of these, which have every rank once: the default group if there is but one."""
    default = dist.group.WORLD
    assert default is not None
    if len(ranks_of_groups) == 1:
        return default
    if default.bound_device_id is not None:
        own = dist.split_group(split_ranks=ranks_of_groups.tolist(), timeout=timeout, group_desc=name)
    else:
        made = [dist.new_group(ranks, timeout=timeout, group_desc=name) for ranks in ranks_of_groups.tolist()]
        (own,) = (group for group in made if group is not dist.GroupMember.NON_GROUP_MEMBER)
    assert own is not None
    return own


@contextmanager
def time_limit(timeout: timedelta) -> Iterator[None]:
    """Give what is communicated within another time limit, in every group that this process has now.

    With gloo, sends and receives keep the limit that their group was made with.
    """
    groups = list(distributed_c10d._world.pg_map)
    before = [group._get_backend(group._device_types[0]).options._timeout for group in groups]
    for group in groups:
        distributed_c10d._set_pg_timeout(timeout, group)
    try:
        yield
    finally:
        for group, limit in zip(groups, before, strict=True):
            distributed_c10d._set_pg_timeout(limit, group)
