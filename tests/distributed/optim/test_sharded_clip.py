"""The global norm over plain tensors, tensors on different meshes, copies and pipeline stages."""

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import Parameter

from glmforge.config.layout import Layout
from glmforge.optim.clip import clip_grad_norm_
from glmforge.parallel.world import World
from helpers.distributed import run_ranks

SHAPES = [(5, 3), (2, 4), (7,), (6, 4), (4, 2, 3), (3,)]
# view, axes and placements of each; None is a plain tensor
MESHES = [
    ("dense", "fsdp", [Shard(0)]),
    ("dense", "fsdp", [Replicate()]),
    ("dense", ("dp_replicate", "fsdp"), [Replicate(), Shard(0)]),
    ("dense", ("fsdp", "tp"), [Shard(0), Shard(1)]),
    ("expert", ("efsdp", "ep"), [Shard(1), Shard(0)]),
    None,
]


def gradients(stage: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3 + stage)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def clip_on_mixed_meshes(layout: Layout, max_norm: float | None) -> tuple[int, Tensor, list[Tensor]]:
    world = World.join(layout, torch.device("cpu"))
    stage = world.axis_rank("pp")
    parameters = []
    for gradient, placed in zip(gradients(stage), MESHES, strict=True):
        if placed is not None:
            view, axes, placements = placed
            gradient = distribute_tensor(gradient, world.meshes[view][axes], placements)
        parameters.append(Parameter(torch.zeros_like(gradient)))
        parameters[-1].grad = gradient
    parameters.append(Parameter(torch.zeros(3)))  # one without a gradient
    norm = clip_grad_norm_(parameters, max_norm, world)
    clipped = [parameter.grad for parameter in parameters[:-1]]
    return stage, norm, [grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in clipped]


@pytest.mark.parametrize(
    ("layout", "max_norm"),
    [
        (Layout(dp_shard=2, tp=2, ep=2), None),
        (Layout(dp_shard=2, tp=2, ep=2), 0.5),
        (Layout(dp_replicate=3, dp_shard=2), 0.5),
        (Layout(pp=2, dp_replicate=2, dp_shard=2, ep=2), 0.5),
    ],
)
def test_norm_over_mixed_meshes_equals_one_process(layout, max_norm):
    expected = [Parameter(torch.zeros(shape)) for _ in range(layout.pp) for shape in SHAPES]
    everything = [gradient for stage in range(layout.pp) for gradient in gradients(stage)]
    for parameter, gradient in zip(expected, everything, strict=True):
        parameter.grad = gradient
    expected_norm = clip_grad_norm_(expected, max_norm)
    for stage, norm, clipped in run_ranks(clip_on_mixed_meshes, layout.world_size, layout, max_norm):
        # fp32 sums in another order
        torch.testing.assert_close(norm, expected_norm, rtol=1e-6, atol=0)
        for gradient, parameter in zip(clipped, expected[stage * len(SHAPES) :], strict=False):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-6, atol=0)


def clip_where_only_one_stage_has_gradients() -> Tensor:
    world = World.join(Layout(pp=2), torch.device("cpu"))
    parameter = Parameter(torch.zeros(2))
    if world.rank == 0:
        parameter.grad = torch.tensor([3.0, 4.0])
    return clip_grad_norm_([parameter], 1.0, world)


def test_a_stage_without_gradients_takes_part():
    assert run_ranks(clip_where_only_one_stage_has_gradients, 2) == [5.0, 5.0]


def clip_what_cannot_be() -> None:
    world = World.join(Layout(dp_shard=2), torch.device("cpu"))
    mesh = world.meshes["dense"]["fsdp"]
    parameter = Parameter(distribute_tensor(torch.zeros(4), mesh, [Replicate()]))
    parameter.grad = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    with pytest.raises(ValueError, match="unreduced partial sums"):
        clip_grad_norm_([parameter], 1.0, world)
    parameter = Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
    parameter.grad = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    with pytest.raises(ValueError, match="needs their world"):
        clip_grad_norm_([parameter], 1.0)


def test_unreduced_gradients_and_a_missing_world_are_refused():
    run_ranks(clip_what_cannot_be, 2)
