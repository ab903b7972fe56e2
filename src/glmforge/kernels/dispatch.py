"""Routed tokens into expert order and back.

A router sends each of T tokens to K experts: N = T * K rows of work. Grouped matrix multiplication needs the rows
of one expert next to each other, so the rows are sorted by expert, computed, and summed back per token with the
router's weights. Every step is a gather with a known inverse, also in the backward pass: no atomic adds, and the
same input gives the same bits on every run.

Implementations: "plain", and "triton", which never makes a float32 [T, K, D] and takes no general sort.

Shapes: T tokens, K experts per token, N = T * K rows, E experts, D features.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Routing:
    """The order in which N = T * K rows are handed to the experts.

    Slot t * K + k is the k-th choice of token t. Row n of the sorted order computes slot `order_N[n]`, and slot s
    is computed in row `inverse_N[s]`.

    Attributes:
        order_N: int64, slots sorted by expert; slots of one expert keep their order.
        inverse_N: int64, the inverse permutation.
        tokens_N: int64, the token of each sorted row.
        counts_E: int64, rows per expert.
        num_choices: K.
        implementation: by which `permute` and `combine` go along this order.
    """

    order_N: Tensor
    inverse_N: Tensor
    tokens_N: Tensor
    counts_E: Tensor
    num_choices: int
    implementation: str = "plain"


def sort_by_expert(experts_TK: Tensor, num_experts: int, *, implementation: str = "plain") -> Routing:
    """The stable order of all (token, choice) slots by their expert. Does not synchronise with the device.

    Args:
        experts_TK: int64, the experts chosen for each token, each in [0, num_experts); `num_experts` itself marks a
            choice that is dropped. Dropped slots come last and are not counted.
    """
    experts_N, num_choices = experts_TK.reshape(-1), experts_TK.shape[1]
    if implementation == "triton":
        from glmforge.kernels.triton.permute import sort_slots

        order_N, inverse_N, tokens_N, counts_E = sort_slots(experts_N, num_experts, num_choices)
        return Routing(order_N, inverse_N, tokens_N, counts_E, num_choices, implementation)
    order_N = torch.argsort(experts_N, stable=True)
    inverse_N = torch.empty_like(order_N)
    inverse_N[order_N] = torch.arange(len(order_N), device=order_N.device)
    # Not bincount, which synchronises on CUDA to learn its output's size.
    expert_ids_E = torch.arange(num_experts, device=experts_N.device)
    counts_E = torch.searchsorted(experts_N[order_N], expert_ids_E, right=True).diff(prepend=expert_ids_E.new_zeros(1))
    return Routing(order_N, inverse_N, order_N // num_choices, counts_E, num_choices)


def limit_to_capacity(experts_TK: Tensor, weights_TK: Tensor, num_experts: int, capacity: int) -> Tensor:
    """`experts_TK` with every expert's slots beyond `capacity` set to `num_experts`, those of least weight first.

    Of equal weights the later slot is dropped.
    """
    experts_N, weights_N = experts_TK.reshape(-1), weights_TK.detach().reshape(-1)
    by_weight_N = weights_N.argsort(descending=True, stable=True)
    routing = sort_by_expert(experts_N[by_weight_N].unsqueeze(1), num_experts)
    starts_E = routing.counts_E.cumsum(0) - routing.counts_E
    sorted_experts_N = experts_N[by_weight_N][routing.order_N]
    place_N = torch.arange(len(experts_N), device=experts_N.device) - starts_E[sorted_experts_N]
    kept_N = torch.where(place_N < capacity, sorted_experts_N, num_experts)
    limited_N = torch.empty_like(experts_N)
    limited_N[by_weight_N[routing.order_N]] = kept_N
    return limited_N.view_as(experts_TK)


def permute(x_TD: Tensor, routing: Routing, num_rows: int | None = None) -> Tensor:
    """x_ND: each token's features once per chosen expert, in expert order (dropped choices last).

    With `num_rows` only so many: those of dropped choices are never made. Gradients are then summed in float32.
    """
    if routing.implementation == "triton":
        from glmforge.kernels.triton.permute import copy_rows

        num_rows = len(routing.order_N) if num_rows is None else num_rows
        return copy_rows(x_TD, routing.inverse_N, routing.num_choices, num_rows)
    if num_rows is not None:
        return _PermuteKept.apply(x_TD, routing.tokens_N[:num_rows], routing.inverse_N, routing.num_choices)
    return _Permute.apply(x_TD, routing.tokens_N, routing.inverse_N, routing.num_choices)


def row_weights(weights_TK: Tensor, routing: Routing) -> Tensor:
    """[N]: the weight of each row, in expert order (dropped choices last)."""
    return _Permute.apply(weights_TK.reshape(-1, 1), routing.order_N, routing.inverse_N, 1).squeeze(1)


def combine(y_MD: Tensor, weights_TK: Tensor | None, routing: Routing) -> Tensor:
    """y_TD: sum over k of weights_TK times the expert's output, in the dtype of y_MD and summed in float32 or better.

    Differentiable in y_MD and weights_TK (usually float32, straight from the router).

    Args:
        y_MD: the rows in expert order; those of dropped choices, which come last, may be omitted and add nothing.
        weights_TK: None adds the rows as they are.
    """
    if routing.implementation == "triton":
        from glmforge.kernels.triton.permute import sum_rows

        return sum_rows(y_MD, weights_TK, routing.inverse_N, routing.num_choices)
    return _add_up(y_MD, weights_TK, routing.inverse_N, routing.num_choices)


def _add_up(y_MD: Tensor, weights_TK: Tensor | None, inverse_N: Tensor, num_choices: int) -> Tensor:
    num_rows = len(y_MD)
    if num_rows < len(inverse_N):
        # One row of zeros for all dropped choices.
        y_MD, inverse_N = F.pad(y_MD, (0, 0, 0, 1)), inverse_N.clamp(max=num_rows)
    if weights_TK is None:
        weights_TK = y_MD.new_ones(len(inverse_N) // num_choices, num_choices)
    return _Combine.apply(y_MD, weights_TK, inverse_N)


class _Permute(torch.autograd.Function):
    """index_select whose backward gathers and sums K rows per token instead of scattering with atomic adds."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, tokens_N: Tensor, inverse_N: Tensor, num_choices: int) -> Tensor:
        ctx.save_for_backward(inverse_N)
        ctx.num_choices = num_choices
        return x_TD.index_select(0, tokens_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        (inverse_N,) = ctx.saved_tensors
        grad_TKD = grad_ND.index_select(0, inverse_N).view(-1, ctx.num_choices, grad_ND.shape[-1])
        return grad_TKD.sum(1), None, None, None


class _PermuteKept(_Permute):
    """The first rows only; backward is the sum of `combine`, which does without the others too."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor | None, ...]:
        (inverse_N,) = ctx.saved_tensors
        return _add_up(grad_MD, None, inverse_N, ctx.num_choices), None, None, None


class _Combine(torch.autograd.Function):
    """A choice at a time, of all tokens: float32 copies of [T, D] instead of [T, K, D], and torch.compile makes one
    kernel of it. Sums over choices go in their order."""

    @staticmethod
    def forward(ctx: Any, y_ND: Tensor, weights_TK: Tensor, inverse_N: Tensor) -> Tensor:
        ctx.save_for_backward(y_ND, weights_TK, inverse_N)
        dtype = torch.promote_types(y_ND.dtype, torch.float32)
        y_TD: Tensor | None = None
        for rows_T, weights_T in zip(_by_choice(inverse_N, weights_TK), weights_TK.to(dtype).unbind(1), strict=True):
            weighted_TD = y_ND.index_select(0, rows_T).to(dtype) * weights_T.unsqueeze(1)
            y_TD = weighted_TD if y_TD is None else y_TD + weighted_TD
        assert y_TD is not None, "every token has an expert"
        return y_TD.to(y_ND.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        y_ND, weights_TK, inverse_N = ctx.saved_tensors
        dtype = torch.promote_types(y_ND.dtype, torch.float32)
        exact_grad_TD = grad_TD.to(dtype)
        y_grad_ND, weights_grads = torch.empty_like(y_ND), []
        for rows_T, weights_T in zip(_by_choice(inverse_N, weights_TK), weights_TK.to(dtype).unbind(1), strict=True):
            weights_grads.append((exact_grad_TD * y_ND.index_select(0, rows_T).to(dtype)).sum(-1))
            y_grad_ND.index_copy_(0, rows_T, (exact_grad_TD * weights_T.unsqueeze(1)).to(y_ND.dtype))
        return y_grad_ND, torch.stack(weights_grads, dim=1).to(weights_TK.dtype), None


def _by_choice(inverse_N: Tensor, weights_TK: Tensor) -> tuple[Tensor, ...]:
    """For each choice, the row of every token."""
    return inverse_N.view_as(weights_TK).unbind(1)
