"""The experts' matmuls, routed tokens there and back: on a device, against one matrix after another in fp64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.kernels.dispatch import combine, limit_to_capacity, permute, sort_by_expert
from glmforge.kernels.experts import expert_linear
from helpers.devices import DEVICES, on, relative_error

BACKENDS = [
    on("cpu", "sliced", torch.float32, 1e-5),
    on("cpu", "sliced", torch.bfloat16, 2e-2),
    on("cuda", "loop", torch.float32, 1e-5),
    on("cuda", "loop", torch.bfloat16, 2e-2),
    on("cuda", "grouped", torch.float32, 1e-5),
    on("cuda", "grouped", torch.bfloat16, 2e-2),
]
COUNTS = {
    "some empty": [0, 5, 130, 1, 0, 64, 8, 48],
    "ends empty": [0, 0, 3, 61, 0, 0],
    "all to one": [0, 257, 0],
    "one expert": [33],
    "one row each": [1] * 8,
}


@pytest.mark.parametrize(("device", "implementation", "dtype", "tolerance"), BACKENDS)
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
# Widths of whole 16 bytes in bf16, among them odd multiples of 8 elements.
@pytest.mark.parametrize("width", [96, 104], ids=str)
def test_swiglu_experts(
    device: str, implementation: str, dtype: torch.dtype, tolerance: float, counts: list[int], width: int
) -> None:
    generator, num_experts = torch.Generator().manual_seed(0), len(counts)
    shapes = [(sum(counts), 128), (num_experts, 2 * width, 128), (num_experts, 128, width)]
    made = [torch.randn(shape, generator=generator) * 0.2 for shape in shapes]
    upstream = torch.randn(sum(counts), 128, generator=generator)

    def run(device: str, dtype: torch.dtype, implementation: str) -> list[Tensor]:
        # Master weights stay fp32 while the rows are bf16, as in training.
        weights = torch.promote_types(dtype, torch.float32)
        inputs = [x.to(device, weights).requires_grad_() for x in made]
        counts_E = torch.tensor(counts, device=device)
        gate_NI, up_NI = expert_linear(inputs[0].to(dtype), inputs[1], counts_E, implementation=implementation).chunk(
            2, dim=-1
        )
        y_ND = expert_linear(F.silu(gate_NI) * up_NI, inputs[2], counts_E, implementation=implementation)
        return [y_ND, *torch.autograd.grad(y_ND, inputs, upstream.to(y_ND))]

    expected, actual = run("cpu", torch.float64, "loop"), run(device, dtype, implementation)
    for name, a, e in zip(("output", "x", "gate_up", "down"), actual, expected, strict=True):
        error = relative_error(a, e)
        assert error < tolerance, f"{name}: {error:.1e}"
    for gradient in actual[2:]:
        for expert, count in enumerate(counts):
            assert count or not gradient[expert].any(), f"expert {expert} has no rows but a gradient"


def routed(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores_TE = torch.randn(301, 16, generator=generator) + torch.linspace(-2, 2, 16)
    weights_TK, experts_TK = scores_TE.sigmoid().topk(4, dim=-1)
    x_TD = torch.randn(301, 72, generator=generator)
    return x_TD.to(device, dtype), weights_TK.to(device), experts_TK.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
def test_there_and_back(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """Rows times their expert's number, summed by weight; the same bits every time."""

    def run(device: str, dtype: torch.dtype) -> list[Tensor]:
        x_TD, weights_TK, experts_TK = routed(device, dtype)
        x_TD.requires_grad_()
        weights_TK.requires_grad_()
        routing = sort_by_expert(experts_TK, 16)
        rows = experts_TK.reshape(-1)[routing.order_N].to(dtype).unsqueeze(1)
        y_TD = combine(permute(x_TD, routing) * rows, weights_TK, routing)
        upstream = torch.randn(y_TD.shape, generator=torch.Generator().manual_seed(2)).to(y_TD)
        return [y_TD, *torch.autograd.grad(y_TD, (x_TD, weights_TK), upstream), routing.counts_E]

    actual = run(device, dtype)
    for a, e in zip(actual[:3], run("cpu", torch.float64)[:3], strict=True):
        assert relative_error(a, e) < tolerance
    assert torch.equal(actual[3].cpu(), torch.bincount(routed("cpu", dtype)[2].flatten(), minlength=16))
    for a, again in zip(actual, run(device, dtype), strict=True):
        assert torch.equal(a, again)


@pytest.mark.parametrize("device", DEVICES)
def test_capacity_drops_the_same_tokens_on_every_device(device: str) -> None:
    _, weights_TK, experts_TK = routed(device, torch.float32)
    _, on_cpu, chosen = routed("cpu", torch.float32)
    expected = limit_to_capacity(chosen, on_cpu, 16, 40)
    assert torch.equal(limit_to_capacity(experts_TK, weights_TK, 16, 40).cpu(), expected)
    assert (expected == 16).any()
