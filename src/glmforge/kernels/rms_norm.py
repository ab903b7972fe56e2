"""RMSNorm, alone or right after a residual addition: x / sqrt(mean(x^2) + eps) over the last dim, times a weight.

The published order of casts: float32 inside, cast back to the dtype of x, then times the weight in that dtype. Weights
may be float32 masters of a bfloat16 model and are cast where they are used.

Shapes: D the last dim; anything before it.
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight_D: Tensor, eps: float, *, implementation: str = "plain") -> Tensor:
    """The norm of `x` [..., D], in its dtype; `implementation` is "plain" or "triton"."""
    if implementation == "triton":
        from glmforge.kernels.triton import rms_norm as triton_kernels

        return triton_kernels.rms_norm(x, weight_D, eps)
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return weight_D.to(x.dtype) * normed.to(x.dtype)


def add_rms_norm(
    x: Tensor, y: Tensor, weight_D: Tensor, eps: float, *, implementation: str = "plain"
) -> tuple[Tensor, Tensor]:
    """`x + y`, in their dtype, and its norm; "triton" makes both in one pass."""
    if implementation == "triton":
        from glmforge.kernels.triton import rms_norm as triton_kernels

        return triton_kernels.add_rms_norm(x, y, weight_D, eps)
    h = x + y
    return h, rms_norm(h, weight_D, eps)
