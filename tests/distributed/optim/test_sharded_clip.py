"""The global norm over plain tensors and tensors on different meshes, and the sum of router counts."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn import Parameter

from glmforge.optim import clip_grad_norm_
from helpers.distributed import run_ranks

SHAPES = [(5, 3), (2, 4), (7,), (1, 6), (3,)]


def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def clip_on_mixed_meshes(max_norm: float | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    flat = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    layouts = [
        (flat, [Shard(0)]),
        (flat, [Replicate()]),
        (square, [Replicate(), Shard(0)]),
        (square, [Shard(0), Shard(0)]),
        None,
    ]
    parameters = []
    for gradient, layout in zip(gradients(), layouts, strict=True):
        local = gradient if layout is None else distribute_tensor(gradient, *layout)
        parameters.append(Parameter(torch.zeros_like(local)))
        parameters[-1].grad = local
    norm = clip_grad_norm_(parameters, max_norm)
    *sharded, plain = [parameter.grad for parameter in parameters]
    return norm, [*(gradient.full_tensor() for gradient in sharded), plain]


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_norm_over_mixed_meshes_equals_one_process(max_norm):
    expected = [Parameter(torch.zeros(shape)) for shape in SHAPES]
    for parameter, gradient in zip(expected, gradients(), strict=True):
        parameter.grad = gradient
    expected_norm = clip_grad_norm_(expected, max_norm)
    for norm, clipped in run_ranks(clip_on_mixed_meshes, 4, max_norm):
        # fp32 sums in another order
        torch.testing.assert_close(norm, expected_norm, rtol=1e-6, atol=0)
        for gradient, parameter in zip(clipped, expected, strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-6, atol=0)


def clip_an_unreduced_gradient() -> str:
    mesh = init_device_mesh("cpu", (2,))
    parameter = Parameter(distribute_tensor(torch.zeros(4), mesh, [Replicate()]))
    local = torch.ones(4)
    parameter.grad = type(parameter.data).from_local(local, mesh, [Partial()])
    with pytest.raises(ValueError, match="unreduced partial sums") as refused:
        clip_grad_norm_([parameter], 1.0)
    return str(refused.value)


def test_an_unreduced_gradient_is_refused():
    assert len(run_ranks(clip_an_unreduced_gradient, 2)) == 2
