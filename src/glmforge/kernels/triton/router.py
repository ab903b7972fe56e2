"""The router in one kernel, and its gradient in another: a token's logits are read once and stay in registers.

Plain PyTorch launches nine small kernels forward and as many backward, one of them `torch.topk`, which sorts in
general; they take microseconds each, in every MoE layer. Here a program finds the K best of a token's E experts by K
searches for the largest, a few instructions of one warp each.

The choice is deterministic: floats are compared as integers of the same order, equal ones by the lower expert. Whatever
the logits are, NaN included, the experts are K different ones in [0, E): later kernels use them as addresses. (NaN is
larger than any number, as for `torch.topk`.) Sums over K have one order.

Kept for the backward pass: experts and unbiased scores of the K choices, not the logits.

Shapes: T tokens, E experts, K experts per token, J groups of M experts.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUM_WARPS = 1
"""For one token: E = 128 or 160 are 4 or 8 values of each thread, and reductions never leave the warp."""


@torch.library.custom_op("glmforge::route", mutates_args=())
def route(
    logits_TE: Tensor,
    bias_E: Tensor,
    choice_TE: Tensor | None,
    num_choices: int,
    num_groups: int,
    num_kept_groups: int,
    normalise: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`weights_TK` fp32, `experts_TK` int64, and the unbiased scores of these experts, fp32; see `kernels.router`."""
    num_tokens, num_experts = logits_TE.shape
    num_groups = num_groups if choice_TE is None and num_groups != num_kept_groups else 1
    weights_TK = logits_TE.new_empty(num_tokens, num_choices)
    experts_TK = torch.empty_like(weights_TK, dtype=torch.int64)
    scores_TK = torch.empty_like(weights_TK)
    if num_tokens:
        _forward_kernel[(num_tokens,)](
            logits_TE.contiguous(),
            bias_E.contiguous(),
            None if choice_TE is None else choice_TE.contiguous(),
            weights_TK,
            experts_TK,
            scores_TK,
            scale,
            E=num_experts,
            K=num_choices,
            J=num_groups,
            KEPT=num_kept_groups,
            NORMALISE=normalise,
            K_BLOCK=triton.next_power_of_2(num_choices),
            J_BLOCK=triton.next_power_of_2(num_groups),
            M_BLOCK=triton.next_power_of_2(num_experts // num_groups),
            num_warps=_NUM_WARPS,
        )
    return weights_TK, experts_TK, scores_TK


@torch.library.custom_op("glmforge::route_backward", mutates_args=())
def route_backward(
    grad_TK: Tensor, experts_TK: Tensor, scores_TK: Tensor, num_experts: int, normalise: bool, scale: float
) -> Tensor:
    """The gradient of the logits [T, E]: zero where an expert was not chosen."""
    num_tokens, num_choices = experts_TK.shape
    grad_TE = grad_TK.new_empty(num_tokens, num_experts)
    if num_tokens:
        _backward_kernel[(num_tokens,)](
            grad_TK.contiguous(),
            experts_TK,
            scores_TK,
            grad_TE,
            scale,
            E=num_experts,
            K=num_choices,
            NORMALISE=normalise,
            K_BLOCK=triton.next_power_of_2(num_choices),
            E_BLOCK=triton.next_power_of_2(num_experts),
            num_warps=_NUM_WARPS,
        )
    return grad_TE


@triton.jit
def _ordered(x):
    """An int32 with the order of the float; never the smallest int32, which is left for what must not be chosen."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _forward_kernel(
    logits_ptr,
    bias_ptr,
    choice_ptr,
    weights_ptr,
    experts_ptr,
    scores_ptr,
    scale,
    E: tl.constexpr,
    K: tl.constexpr,
    J: tl.constexpr,
    KEPT: tl.constexpr,
    NORMALISE: tl.constexpr,
    K_BLOCK: tl.constexpr,
    J_BLOCK: tl.constexpr,
    M_BLOCK: tl.constexpr,
):
    LOWEST: tl.constexpr = -0x80000000
    token = tl.program_id(0).to(tl.int64)
    groups, members = tl.arange(0, J_BLOCK)[:, None], tl.arange(0, M_BLOCK)[None, :]
    experts = groups * (E // J) + members
    exists = (groups < J) & (members < E // J)
    scores = tl.sigmoid(tl.load(logits_ptr + token * E + experts, mask=exists, other=0.0))
    if choice_ptr is not None:
        choice = tl.load(choice_ptr + token * E + experts, mask=exists, other=0.0)
    else:
        choice = scores + tl.load(bias_ptr + experts, mask=exists, other=0.0)
    keys = tl.where(exists, _ordered(choice), LOWEST)
    if J > 1:
        best = tl.max(tl.where(exists, choice, float("-inf")), axis=1)
        others = exists & (members != tl.argmax(keys, axis=1)[:, None])
        second = tl.max(tl.where(others, choice, float("-inf")), axis=1)
        lanes = tl.arange(0, J_BLOCK)
        group_keys = tl.where(lanes < J, _ordered(best + second), LOWEST)
        kept = lanes < 0
        for _ in tl.static_range(KEPT):
            chosen = lanes == tl.argmax(group_keys, axis=0)
            kept = kept | chosen
            group_keys = tl.where(chosen, LOWEST, group_keys)
        keys = tl.where(kept[:, None], keys, LOWEST)
    keys = tl.reshape(keys, (J_BLOCK * M_BLOCK,))
    experts = tl.reshape(experts, (J_BLOCK * M_BLOCK,))
    scores = tl.reshape(scores, (J_BLOCK * M_BLOCK,))
    lanes, slots = tl.arange(0, J_BLOCK * M_BLOCK), tl.arange(0, K_BLOCK)
    best_experts = tl.zeros((K_BLOCK,), dtype=tl.int32)
    best_scores = tl.zeros((K_BLOCK,), dtype=tl.float32)
    for slot in tl.static_range(K):
        chosen = lanes == tl.argmax(keys, axis=0)
        best_experts = tl.where(slots == slot, tl.sum(tl.where(chosen, experts, 0), axis=0), best_experts)
        best_scores = tl.where(slots == slot, tl.sum(tl.where(chosen, scores, 0.0), axis=0), best_scores)
        keys = tl.where(chosen, LOWEST, keys)
    weights = best_scores
    if NORMALISE:
        weights = weights / (tl.sum(best_scores, axis=0) + 1e-20)
    offsets = token * K + slots
    tl.store(weights_ptr + offsets, weights * scale, mask=slots < K)
    tl.store(experts_ptr + offsets, best_experts.to(tl.int64), mask=slots < K)
    tl.store(scores_ptr + offsets, best_scores, mask=slots < K)


@triton.jit
def _backward_kernel(
    grad_ptr,
    experts_ptr,
    scores_ptr,
    grad_logits_ptr,
    scale,
    E: tl.constexpr,
    K: tl.constexpr,
    NORMALISE: tl.constexpr,
    K_BLOCK: tl.constexpr,
    E_BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slots, lanes = tl.arange(0, K_BLOCK), tl.arange(0, E_BLOCK)
    offsets = token * K + slots
    grad = tl.load(grad_ptr + offsets, mask=slots < K, other=0.0) * scale
    scores = tl.load(scores_ptr + offsets, mask=slots < K, other=0.0)
    experts = tl.load(experts_ptr + offsets, mask=slots < K, other=-1).to(tl.int32)
    if NORMALISE:
        total = tl.sum(scores, axis=0) + 1e-20
        grad = (grad - tl.sum(grad * scores, axis=0) / total) / total
    grad *= scores * (1 - scores)
    grad_E = tl.sum(tl.where(lanes[:, None] == experts[None, :], grad[None, :], 0.0), axis=1)
    tl.store(grad_logits_ptr + token * E + lanes, grad_E, mask=lanes < E)


@route.register_fake
def _(
    logits_TE: Tensor,
    bias_E: Tensor,
    choice_TE: Tensor | None,
    num_choices: int,
    num_groups: int,
    num_kept_groups: int,
    normalise: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    weights_TK = logits_TE.new_empty(logits_TE.shape[0], num_choices)
    return weights_TK, torch.empty_like(weights_TK, dtype=torch.int64), torch.empty_like(weights_TK)


@route_backward.register_fake
def _(
    grad_TK: Tensor, experts_TK: Tensor, scores_TK: Tensor, num_experts: int, normalise: bool, scale: float
) -> Tensor:
    return grad_TK.new_empty(grad_TK.shape[0], num_experts)


def _keep_choice(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits_TE, *_, ctx.normalise, ctx.scale = inputs
    _, experts_TK, scores_TK = output
    ctx.num_experts = logits_TE.shape[1]
    ctx.mark_non_differentiable(scores_TK)
    ctx.save_for_backward(experts_TK, scores_TK)


def _gradients(ctx: Any, grad_TK: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    experts_TK, scores_TK = ctx.saved_tensors
    grad_TE = route_backward(grad_TK, experts_TK, scores_TK, ctx.num_experts, ctx.normalise, ctx.scale)
    return grad_TE, *[None] * 7


route.register_autograd(_gradients, setup_context=_keep_choice)
