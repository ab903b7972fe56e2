"""SwiGLU's product: silu(gate) * up, each row times a weight of its own if it is given one.

A routed row's weight may be applied here as well as after the down projection, which is linear:
w * down(a) = down(w * a). Here it costs no pass over memory of its own, and its gradient is a sum over the I features
of the expert instead of the D of its output, which then need not be kept for the backward pass: N * D elements of a
layer, 512 MiB for 8,192 tokens of GLM-4.5-Air in bfloat16.

Shapes: N rows, I features of one expert.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up_N2I: Tensor, weights_N: Tensor | None = None, *, implementation: str = "plain") -> Tensor:
    """silu(gate) * up [N, I], in the dtype of `gate_up_N2I`, whose first I columns are the gate's.

    With `weights_N` (usually float32, straight from the router) each row is multiplied by its weight, in float32 or
    better. Differentiable in both.
    """
    if implementation == "triton":
        from glmforge.kernels.triton.swiglu import swiglu as fused

        return fused(gate_up_N2I, weights_N)
    gate_NI, up_NI = gate_up_N2I.chunk(2, dim=-1)
    product_NI = F.silu(gate_NI) * up_NI
    if weights_N is None:
        return product_NI
    dtype = torch.promote_types(product_NI.dtype, torch.float32)
    return (product_NI.to(dtype) * weights_N.to(dtype).unsqueeze(-1)).to(product_NI.dtype)
