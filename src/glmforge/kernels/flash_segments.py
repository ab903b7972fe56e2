"""The CPU's flash kernel for segments that begin inside a document: its causal mask wants the first query at the first
key.

Softmax over all keys is put together from two calls of the kernel, one over the keys before the segment, which every
query sees, and one over the segment's own, which is causal: each result weighs the sum of exponentials that it comes
from. Backward, each call is given the whole result and the logarithm of the whole sum, as in ring attention (Liu et
al., 2023, arXiv 2310.01889), and so gives its part of the gradients. A mask would take queries x keys x 4 bytes, saved
for the backward pass: 17 GB for one of two ranks that share 131,072 tokens.

Shapes: B segments, H query heads, G key/value heads, Q queries, K keys, P head_dim.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def flash_segments(q_BHQP: Tensor, k_BGKP: Tensor, v_BGKP: Tensor) -> Tensor:
    """o_BHQP of segments with K > Q: the last query sees all keys, each one before it one less."""
    o: Tensor = _FlashSegments.apply(q_BHQP, k_BGKP, v_BGKP)
    return o


class _FlashSegments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (k_before, k_own), (v_before, v_own) = _split(k, q), _split(v, q)
        o_before, log_sum_before = _flash(q, k_before, v_before)
        o_own, log_sum_own = _flash(q, k_own, v_own, is_causal=True)
        log_sum = torch.logaddexp(log_sum_before, log_sum_own)
        # At most 1, and rounded to the result's type like it: no copy of it is made in a wider one.
        share_own = (log_sum_own - log_sum).exp_().unsqueeze(-1)
        o = torch.lerp(o_before, o_own, share_own.to(o_own.dtype))
        ctx.save_for_backward(q, k, v, o, log_sum)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, o, log_sum = ctx.saved_tensors
        (k_before, k_own), (v_before, v_own) = _split(k, q), _split(v, q)
        of_q, *before = _flash_backward(grad, q, k_before, v_before, o, log_sum, 0.0, False)
        of_q_own, *own = _flash_backward(grad, q, k_own, v_own, o, log_sum, 0.0, True)
        of_k, of_v = (torch.cat(parts, dim=2) for parts in zip(before, own, strict=True))
        return of_q + of_q_own, of_k, of_v


def _split(x_BGKP: Tensor, q_BHQP: Tensor) -> tuple[Tensor, Tensor]:
    """The keys before the segment, and its own."""
    before, own = x_BGKP.split([x_BGKP.shape[2] - q_BHQP.shape[2], q_BHQP.shape[2]], dim=2)
    return before, own
