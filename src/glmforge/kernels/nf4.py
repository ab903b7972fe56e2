"""Linear maps whose frozen weight is held in NF4: 4-bit codes and a scale for every 64 inputs.

NF4 (Dettmers et al., 2023, arXiv 2305.14314) has 16 levels between -1 and 1, those that a normal distribution fills
evenly; a block of numbers is divided by its largest and each rounded to the nearest level. The levels are torchao's.
Of torchao's `NF4Tensor` nothing else is used: it is a tensor subclass of two dims that cannot be sliced, and layers
here have packed experts and are cut by FSDP2, tp and ep. Codes lie as there, the first of two in the upper half of a
byte, and the nearest level is found by bisection in place of 16 distances for each number.

The product is that of the weight in the dtype of x, which is made in the forward pass, again in the backward pass, and
kept in neither: of experts it is a layer's packed matrix.

Shapes: N rows, E experts, J input and O output features.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from glmforge.config.quantised import BLOCK
from glmforge.extras import needed_for
from glmforge.kernels.experts import expert_linear

_CHUNK = 1 << 24
"""Weights that are made at once: what is between codes and weights takes some 10 bytes for each."""


@cache
def levels(device: torch.device) -> Tensor:
    """The 16 levels of NF4 in ascending order, fp32. Raises `MissingPackageError` without torchao."""
    with needed_for("precision.frozen: nf4"):
        from torchao.quantization import NF4Tensor
    # They are in every tensor of the class, and nowhere else.
    return NF4Tensor.from_tensor(torch.ones(BLOCK), BLOCK, 1).nf4.to(device)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [.., J / 2] (uint8) and scales [.., J / 64] (bf16) of a weight [.., J]; scales are finite as it is."""
    blocks = weight.float().unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    known = levels(weight.device)
    borders = (known[:-1] + known[1:]) / 2
    # A block of zeros has any codes.
    scaled = blocks / largest.clamp(min=torch.finfo(torch.float32).tiny)
    codes = torch.bucketize(scaled, borders, out_int32=True).to(torch.uint8).flatten(-2)
    return codes[..., ::2] << 4 | codes[..., 1::2], largest.squeeze(-1).bfloat16()


@torch.library.custom_op("glmforge::nf4_dequantise", mutates_args=())
def dequantise(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight [.., J] that codes and scales stand for, rounded once."""
    known = levels(codes.device)
    both = torch.arange(256, device=codes.device)
    pairs = torch.stack((known[both >> 4], known[both & 15]), dim=1)
    weight = codes.new_empty((*codes.shape[:-1], 2 * codes.shape[-1]), dtype=dtype)
    rows = max(1, _CHUNK // weight.shape[-1])
    chunks = (tensor.flatten(0, -2).split(rows) for tensor in (codes, scales, weight))
    for some, scale, out in zip(*chunks, strict=True):
        blocks = F.embedding(some.int(), pairs).view(len(some), -1, BLOCK)
        out.copy_((blocks * scale.float().unsqueeze(-1)).view_as(out))
    return weight


@dequantise.register_fake
def _(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return codes.new_empty((*codes.shape[:-1], 2 * codes.shape[-1]), dtype=dtype)


def nf4_linear(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    *,
    bias: Tensor | None = None,
    counts_E: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """`x @ weight.T (+ bias)` in the dtype of x; with `counts_E` and `implementation` as in `expert_linear`."""
    rows = x.flatten(0, -2)
    y: Tensor = _Nf4Linear.apply(rows, codes, scales, counts_E, implementation)
    y = y.unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias.to(y.dtype)


class _Nf4Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NJ: Tensor, codes: Tensor, scales: Tensor, counts_E: Tensor | None, implementation: str
    ) -> Tensor:
        ctx.save_for_backward(codes, scales, counts_E)
        ctx.implementation = implementation
        return _product(x_NJ, dequantise(codes, scales, x_NJ.dtype), counts_E, implementation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor, None, None, None, None]:
        codes, scales, counts_E = ctx.saved_tensors
        weight = dequantise(codes, scales, grad_NO.dtype)
        return _product(grad_NO.contiguous(), weight.mT, counts_E, ctx.implementation), None, None, None, None


def _product(x_NJ: Tensor, weight: Tensor, counts_E: Tensor | None, implementation: str) -> Tensor:
    if counts_E is None:
        return F.linear(x_NJ, weight)
    return expert_linear(x_NJ, weight, counts_E, implementation=implementation)
