"""4-bit weights against torchao's, and products by them against those of the weights that the codes stand for."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.kernels.experts import expert_linear
from glmforge.kernels.nf4 import dequantise, levels, nf4_linear, quantise
from helpers.devices import DEVICES, relative_error

pytest.importorskip("torchao")
from torchao.quantization import NF4Tensor


def weight_of(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def test_codes_and_weights_are_those_of_torchao() -> None:
    weight = weight_of(128, 256)
    codes, scales = quantise(weight)
    theirs = NF4Tensor.convert_to_norm_float_weight(weight.float(), codes.numel() // 32, 64, levels(weight.device))
    assert torch.equal(codes.flatten(), theirs)
    exact = NF4Tensor.from_tensor(weight.float(), 64, 256)
    # torchao rounds the scales to 8 bits, of the widest of which is 2^-8 of their spread.
    assert relative_error(dequantise(codes, scales, torch.float32), exact.get_original_weight()) < 2e-3


def test_a_block_is_rounded_by_itself() -> None:
    weight = weight_of(3, 4, 192)
    codes, scales = quantise(weight)
    part = quantise(weight[1:, :, 64:128])
    assert torch.equal(part[0], codes[1:, :, 32:64])
    assert torch.equal(part[1], scales[1:, :, 1:2])


def test_what_levels_can_say_is_exact() -> None:
    """Zeros, and blocks of levels, however large."""
    weight = torch.zeros(2, 128)
    weight[1] = levels(weight.device).repeat(8) * 2.0**100
    assert torch.equal(dequantise(*quantise(weight), torch.float32), weight)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_scales_show_what_is_not_finite(wrong: float) -> None:
    weight = weight_of(2, 128)
    weight[1, 70] = wrong
    assert quantise(weight)[1].isfinite().tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_experts", [None, 4], ids=["linear", "experts"])
def test_products_are_those_of_the_weights_made_of_the_codes(
    device: str, dtype: torch.dtype, num_experts: int | None
) -> None:
    shape = (96, 128) if num_experts is None else (num_experts, 96, 128)
    codes, scales = quantise(weight_of(*shape).to(device))
    weight = dequantise(codes, scales, dtype)
    counts_E = None if num_experts is None else torch.tensor([7, 0, 20, 5], device=device)
    bias = weight_of(96).to(device) if num_experts is None else None
    found = []
    for is_quantised in (True, False):
        x = weight_of(32, 128).to(device, dtype).requires_grad_()
        if is_quantised:
            y = nf4_linear(x, codes, scales, bias=bias, counts_E=counts_E)
        elif counts_E is None:
            y = F.linear(x, weight, bias.to(dtype))
        else:
            y = expert_linear(x, weight, counts_E)
        y.backward(weight_of(*y.shape).to(device, dtype))
        found.append((y, x.grad))
    # The bias is added to a rounded product, and sums may be of another order.
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3
    assert all(relative_error(ours, other) < tolerance for ours, other in zip(*found, strict=True))
