"""The part of a tensor that a rank says it holds is the part that it holds, on every combination of axes."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from glmforge.config.layout import Layout
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World
from helpers.distributed import run_ranks
from helpers.layouts import full_tensors, lay_out, uneven_config

LAYOUTS = {
    "fsdp": Layout(dp_shard=8),
    "tp x fsdp": Layout(dp_shard=2, tp=2),
    "tp x hsdp x ep": Layout(dp_replicate=2, dp_shard=2, tp=2, ep=2),
    "pp x tp x cp x ep": Layout(pp=2, cp=2, tp=2, ep=4),
}


def check_parts(layout: Layout) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Compare every part with that slice of the whole; return offsets and sizes of all parts by name."""
    world = World.join(layout, torch.device("cpu"))
    config = uneven_config()
    full = full_tensors(config)
    parts: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for name, tensor in lay_out(full, config, world).items():
        local, offsets = local_chunk(tensor)
        box = tuple(slice(offset, offset + size) for offset, size in zip(offsets, local.shape, strict=True))
        assert torch.equal(local, full[name][box]), name
        parts[name] = [(offsets, tuple(local.shape))]
    return parts


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_parts_lie_where_they_say_and_cover_the_whole(layout: Layout) -> None:
    config = uneven_config()
    of_ranks = run_ranks(check_parts, layout.world_size, layout)
    for name, tensor in full_tensors(config).items():
        covered = torch.zeros(tensor.shape, dtype=torch.bool)
        parts = {part for parts in of_ranks for part in parts.get(name, [])}
        for offsets, sizes in parts:
            covered[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))] = True
        assert covered.all(), name
        assert sum(torch.Size(sizes).numel() for _, sizes in parts) == tensor.numel(), f"parts of {name} overlap"


def write_through_the_part() -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for tensor in (distribute_tensor(torch.zeros(5, 3), mesh, [Shard(0)]).requires_grad_(), torch.zeros(5, 3)):
        local, offsets = local_chunk(tensor)
        local.copy_(torch.arange(15.0).view(5, 3)[offsets[0] : offsets[0] + local.shape[0]])
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        assert torch.equal(whole, torch.arange(15.0).view(5, 3))
        assert not local.requires_grad
    replicated = distribute_tensor(torch.ones(3), mesh, [Replicate()])
    assert local_chunk(replicated)[1] == (0,)
    assert local_chunk(torch.tensor(1.0))[1] == ()


def test_the_part_shares_memory_with_the_tensor() -> None:
    run_ranks(write_through_the_part, 2)
