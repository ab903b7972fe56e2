"""Linear maps whose forward product and input gradient multiply 8-bit numbers (e4m3), scaled as they come.

Both factors are scaled along the summed dim so that the largest element of each group of numbers comes near e4m3's
largest, 448, and rounded. A group is a row (`fp8`), or 32 consecutive numbers of it (`mxfp8`: the OCP microscaling
format, whose scales are rounded up as NVIDIA's hardware does). Scales are powers of two, so scaling itself rounds
nothing, and a row cut over ranks is rounded like a whole one but for numbers 2^-14 below the largest.

The weight gradient is a product of bf16: it sums over tokens, whose rows would have to be scaled the other way and,
for experts, padded to multiples of 16; and it is where 8 bits cost most accuracy. torchao calls this recipe
`rowwise_with_gw_hp`. torchao itself is not used: its `Float8Linear` replaces `nn.Linear` modules and their weights,
where a `Matmul` of glmforge gets local parts from FSDP2, tp and ep; and its grouped product needs padded experts.

CUDA multiplies by `torch._scaled_mm` and `torch._scaled_grouped_mm` (compute capability 9 or 10), which sum in fp32 and
round to bf16. Elsewhere, and for mxfp8 everywhere, the product is emulated: e4m3 times a power of two is a bf16 number,
so the bf16 product of the rounded factors is the same sum. The emulation is the reference of the CUDA path.

Shapes: N rows, E experts, J input and O output features.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from glmforge.kernels.experts import expert_linear
from glmforge.kernels.target import kernel_device

E4M3 = torch.float8_e4m3fn
E4M3_MAX = torch.finfo(E4M3).max
MX_BLOCK = 32
MULTIPLE = 16
"""Of which widths must be a multiple for the CUDA kernels."""


class Quantised(NamedTuple):
    """e4m3 numbers like what they stand for, and fp32 powers of two to multiply groups of the last dim with."""

    data: Tensor
    scale: Tensor

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """What they stand for; exact in bf16 and fp32."""
        groups = self.data.to(dtype).unflatten(-1, (self.scale.shape[-1], -1))
        return (groups * self.scale.to(dtype).unsqueeze(-1)).flatten(-2)


def quantise(x: Tensor, block_size: int | None) -> Quantised:
    """`x` in e4m3 with a scale for each row, or each `block_size` numbers of it; rounded to the nearest.

    Not finite where `x` is not.
    """
    groups = x.unflatten(-1, (-1, block_size or x.shape[-1]))
    largest = groups.abs().amax(-1, keepdim=True).float()
    # Up to the next power of two: the bits of the exponent, after a carry from any bit of the mantissa.
    bits = (largest / E4M3_MAX).view(torch.int32) + 0x007FFFFF
    scale = (bits & 0x7F800000).view(torch.float32).clamp(min=torch.finfo(torch.float32).tiny)
    return Quantised((groups / scale.to(x.dtype)).to(E4M3).flatten(-2), scale.squeeze(-1))


def fp8_linear(
    x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None, block_size: int | None
) -> Tensor:
    """`x @ weight.T (+ bias)` in the dtype of x; with `counts_E` as in `expert_linear`.

    The gradients of weight and bias come back in their own dtype. `block_size` is `MX_BLOCK`, or None for rows.
    """
    rows = x.flatten(0, -2)
    y: Tensor = _Fp8Linear.apply(rows, weight, bias, counts_E, block_size)
    return y.unflatten(0, x.shape[:-1])


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NJ: Tensor, weight: Tensor, bias: Tensor | None, counts_E: Tensor | None, block_size: int | None
    ) -> Tensor:
        of_x, of_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x_NJ if of_weight else None, weight if of_x else None, counts_E)
        ctx.block_size, ctx.weight_dtype = block_size, weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _product(x_NJ, weight.to(x_NJ.dtype), bias, counts_E, block_size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x_NJ, weight, counts_E = ctx.saved_tensors
        grad_NO = grad_NO.contiguous()
        x_grad = weight_grad = bias_grad = None
        if weight is not None:
            transposed = weight.to(grad_NO.dtype).mT.contiguous()
            x_grad = _product(grad_NO, transposed, None, counts_E, ctx.block_size)
        if x_NJ is not None:
            weight_grad = _outer(grad_NO, x_NJ, counts_E).to(ctx.weight_dtype)
        if ctx.needs_input_grad[2]:
            bias_grad = grad_NO.sum(0).to(ctx.bias_dtype)
        return x_grad, weight_grad, bias_grad, None, None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, counts_E: Tensor | None, block_size: int | None) -> Tensor:
    """x @ weight.T (+ bias) after rounding both to e4m3 along the last dim; both contiguous and of one dtype."""
    a, b = quantise(x, block_size), quantise(weight, block_size)
    bias = None if bias is None else bias.to(x.dtype)
    if block_size is not None or kernel_device(x.device) == "cpu":
        x, weight = a.dequantise(x.dtype), b.dequantise(x.dtype)
        return F.linear(x, weight, bias) if counts_E is None else expert_linear(x, weight, counts_E)
    if counts_E is None:
        return torch._scaled_mm(a.data, b.data.t(), a.scale, b.scale.t(), bias=bias, out_dtype=x.dtype)
    ends_E = counts_E.cumsum(0).to(torch.int32)
    scales = a.scale.squeeze(-1), b.scale.squeeze(-1)
    return torch._scaled_grouped_mm(a.data, b.data.mT, *scales, offs=ends_E, out_dtype=x.dtype)


def _outer(grad_NO: Tensor, x_NJ: Tensor, counts_E: Tensor | None) -> Tensor:
    """grad^T @ x, of each expert's rows: [O, J] or [E, O, J]."""
    if counts_E is None:
        return grad_NO.t() @ x_NJ
    if kernel_device(x_NJ.device) == "cpu":
        return torch.ops.glmforge.sliced_outer(grad_NO, x_NJ, counts_E)
    return F.grouped_mm(grad_NO.t(), x_NJ, offs=counts_E.cumsum(0).to(torch.int32))
