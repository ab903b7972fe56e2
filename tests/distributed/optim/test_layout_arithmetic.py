"""Where the parts of a tensor lie, computed without communication, is where torch puts them."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from glmforge.config.layout import Layout
from glmforge.optim.sharding import chunk, splits_of, union_of, union_ranks
from glmforge.parallel.world import World
from helpers.distributed import run_ranks

# shape, (axis, dim) of tp or ep, (axes, dim) of FSDP2
TP_0, TP_1, EP = ("tp", 0), ("tp", 1), ("ep", 0)
CASES = {
    "fsdp": (Layout(dp_shard=4), [((5, 3), None, ("fsdp", 0)), ((1, 3), None, ("fsdp", 0))]),
    "hsdp": (Layout(dp_replicate=2, dp_shard=2), [((5, 3), None, (("dp_replicate", "fsdp"), 0))]),
    "tp, fsdp": (
        Layout(dp_shard=3, tp=2),
        [
            ((10, 4), TP_0, ("fsdp", 0)),
            ((2, 4), TP_0, ("fsdp", 0)),
            ((10, 4), TP_1, ("fsdp", 0)),
            ((10, 4), TP_0, None),
            ((10, 4), None, ("efsdp", 0)),
        ],
    ),
    "tp, hsdp": (Layout(dp_replicate=2, dp_shard=2, tp=2), [((10, 4), TP_0, (("dp_replicate", "fsdp"), 0))]),
    "ep, efsdp": (
        Layout(dp_shard=2, tp=2, ep=2),
        [((8, 6, 4), EP, ("efsdp", 0)), ((2, 6, 4), EP, ("efsdp", 1)), ((2, 6, 4), EP, None)],
    ),
    "pp": (Layout(pp=2, dp_shard=2, ep=2), [((4, 2, 3), EP, ("efsdp", 0)), ((5, 3), None, ("fsdp", 0))]),
}


def mesh_of(world: World, axes: Any) -> DeviceMesh:
    first = axes if isinstance(axes, str) else axes[-1]
    return world.meshes["expert" if first in ("ep", "efsdp") else "dense"][axes]


def lay_out(world: World, shape: tuple[int, ...], outer: Any, inner: Any) -> Tensor:
    holder = nn.Module()
    value: Tensor = torch.arange(float(torch.tensor(shape).prod())).view(shape)
    if outer is not None:
        value = distribute_tensor(value, mesh_of(world, outer[0]), [Shard(outer[1])])
    holder.register_parameter("value", nn.Parameter(value))
    if inner is not None:
        fully_shard(holder, mesh=mesh_of(world, inner[0]), shard_placement_fn=lambda parameter: Shard(inner[1]))
    return holder.value


def parts(layout: Layout, cases: list[Any]) -> list[Any]:
    """Of each case: what the arithmetic says of all ranks, what torch says of this one, and what lies here."""
    world = World.join(layout, torch.device("cpu"))
    found = []
    for shape, outer, inner in cases:
        tensor = lay_out(world, shape, outer, inner)
        assert isinstance(tensor, DTensor)
        computed = [chunk(shape, splits_of(tensor), layout.coordinates(rank)) for rank in range(layout.world_size)]
        local_shape, start = compute_local_shape_and_global_offset(shape, tensor.device_mesh, tensor.placements)
        found.append((computed, tuple(local_shape), tuple(start), tensor.to_local().detach().clone()))
    for union in ("stage", "expert_stage"):
        group = world.group(union)
        assert list(union_ranks(layout, world.rank, union)) == (
            [world.rank] if group is None else dist.get_process_group_ranks(group)
        )
    return found


@pytest.mark.parametrize(("layout", "cases"), CASES.values(), ids=CASES)
def test_every_rank_knows_the_parts_of_all(layout, cases):
    ranks = run_ranks(parts, layout.world_size, layout, cases)
    for index, (shape, *_) in enumerate(cases):
        whole = torch.arange(float(torch.tensor(shape).prod())).view(shape)
        for rank, found in enumerate(ranks):
            _, local_shape, start, part = found[index]
            for computed, *_ in (other[index] for other in ranks):
                spans = computed[rank]
                assert tuple(stop - first for first, stop in spans) == local_shape
                if part.numel():
                    assert tuple(first for first, _ in spans) == start
                assert torch.equal(whole[tuple(slice(*span) for span in spans)], part)


def refuse() -> list[str]:
    world = World.join(Layout(dp_shard=2, tp=2, ep=2), torch.device("cpu"))
    dense, expert = world.meshes["dense"]["fsdp", "tp"], world.meshes["expert"]["efsdp", "ep"]
    tokens = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    assert union_of(distribute_tensor(torch.zeros(4, 4), expert, [Replicate(), Shard(0)])) == "expert_stage"
    assert splits_of(distribute_tensor(torch.zeros(4, 4), dense, [Replicate(), Replicate()])) == ()
    refused = [
        distribute_tensor(torch.zeros(4, 4), dense, [Shard(0), Shard(0)]),  # fsdp outside of tp
        distribute_tensor(torch.zeros(4, 4), tokens["dp_shard"], [Shard(0)]),
        distribute_tensor(torch.zeros(4, 4), DeviceMesh("cpu", list(range(4))), [Shard(0)]),
        DTensor.from_local(torch.zeros(4, 4), world.meshes["dense"]["tp"], [Partial()], run_check=False),
    ]
    messages = []
    for tensor in refused:
        with pytest.raises(ValueError, match=r"knows no tensor|unreduced partial sums") as error:
            splits_of(tensor)
        messages.append(str(error.value))
    return messages


def test_other_layouts_are_refused():
    *unknown, partial = run_ranks(refuse, 4)[0]
    assert all("knows no tensor placed" in message for message in unknown)
    assert "holds unreduced partial sums" in partial
