"""Routed tokens into expert order and back: a counting sort, copies of rows, and weighted sums of rows.

What is sorted are at most a few hundred different numbers, so counting takes the place of `torch.argsort`, which on
CUDA is a radix sort of 64-bit keys in many passes. Each block of slots counts its experts, a cumulative sum over
(expert, block) tells each where its rows begin, and each block places its slots in their order: stable, without
atomics, and no number comes to the host.

Rows are moved by token: a program reads a token's features once and writes them to its K rows, or reads its K rows and
writes their sum, in float32 and in the order of the choices. [T, K, D] never exists. All is deterministic to the bit.
The gradients of a weighted sum, of the rows and of the weights, are made in one pass over the rows.

What kept libraries have of this is in docs/kernels.md.

Rows are numbered in int64: 131,072 tokens x 8 x 4,096 features are more elements than int32 can count.

Shapes: T tokens, K experts per token, N = T * K slots and rows, M <= N of the rows that exist, E experts, D features, B
blocks of slots.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_SLOTS = 128
"""Slots of a block of the sort: their comparison with each other is 128 values of each thread of 4 warps."""
_EXPERTS = 64
"""Experts counted at a time."""
_FEATURES, _NUM_WARPS = 1024, 4
"""Features at a time, 8 for each thread: 16 bytes of bfloat16. D = 4,096 and 5,120 are 4 and 5 times that."""


@torch.library.custom_op("glmforge::sort_slots", mutates_args=())
def sort_slots(experts_N: Tensor, num_experts: int, num_choices: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`order_N`, `inverse_N`, `tokens_N` and `counts_E` of `glmforge.kernels.dispatch.Routing`, all int64."""
    experts_N = experts_N.contiguous()
    order_N, inverse_N, tokens_N = (torch.empty_like(experts_N) for _ in range(3))
    num_slots, num_blocks = len(experts_N), triton.cdiv(len(experts_N), _SLOTS)
    if not num_slots:
        return order_N, inverse_N, tokens_N, experts_N.new_zeros(num_experts)
    counts_EB = torch.empty(num_experts + 1, num_blocks, dtype=torch.int32, device=experts_N.device)
    _count_kernel[(num_blocks,)](
        experts_N,
        counts_EB,
        num_slots,
        num_blocks,
        num_experts + 1,
        NUM_CHUNKS=triton.cdiv(num_experts + 1, _EXPERTS),
        CHUNK=_EXPERTS,
        SLOTS=_SLOTS,
        num_warps=_NUM_WARPS,
    )
    counts = counts_EB.flatten()
    starts = counts.cumsum(0, dtype=torch.int32) - counts
    _place_kernel[(num_blocks,)](
        experts_N,
        starts,
        order_N,
        inverse_N,
        tokens_N,
        num_slots,
        num_blocks,
        num_choices,
        SLOTS=_SLOTS,
        num_warps=_NUM_WARPS,
    )
    return order_N, inverse_N, tokens_N, counts_EB[:-1].sum(1)


@torch.library.custom_op("glmforge::copy_rows", mutates_args=())
def copy_rows(x_TD: Tensor, inverse_N: Tensor, num_choices: int, num_rows: int) -> Tensor:
    """x_MD: each token's features in the rows of its choices; choices whose row is not there go nowhere."""
    x_TD = _rows(x_TD)
    num_tokens, num_features = x_TD.shape
    x_MD = x_TD.new_empty(num_rows, num_features)
    if x_TD.numel():
        block = _block(num_features)
        _copy_kernel[(num_tokens, triton.cdiv(num_features, block))](
            x_TD,
            inverse_N,
            x_MD,
            x_TD.stride(0),
            num_features,
            num_rows,
            K=num_choices,
            BLOCK=block,
            num_warps=_NUM_WARPS,
        )
    return x_MD


@torch.library.custom_op("glmforge::sum_rows", mutates_args=())
def sum_rows(y_MD: Tensor, weights_TK: Tensor | None, inverse_N: Tensor, num_choices: int) -> Tensor:
    """y_TD: the sum of each token's rows, times their weights if there are any; rows that are not there are zeros."""
    y_MD = _rows(y_MD)
    num_rows, num_features = y_MD.shape
    y_TD = y_MD.new_empty(len(inverse_N) // num_choices, num_features)
    if y_TD.numel():
        block = _block(num_features)
        _sum_kernel[(len(y_TD), triton.cdiv(num_features, block))](
            y_MD,
            None if weights_TK is None else weights_TK.contiguous(),
            inverse_N,
            y_TD,
            y_MD.stride(0),
            num_features,
            num_rows,
            K=num_choices,
            BLOCK=block,
            num_warps=_NUM_WARPS,
        )
    return y_TD


@torch.library.custom_op("glmforge::sum_rows_backward", mutates_args=())
def sum_rows_backward(grad_TD: Tensor, y_MD: Tensor, weights_TK: Tensor, inverse_N: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the rows (each token's, times the weight) and of the weights (each row's product with it)."""
    grad_TD, y_MD = _rows(grad_TD), _rows(y_MD)
    num_rows, num_features = y_MD.shape
    y_grad_MD = torch.empty_like(y_MD, memory_format=torch.contiguous_format)
    weights_grad_TK = torch.empty(weights_TK.shape, dtype=torch.float32, device=y_MD.device)
    if weights_TK.numel():
        block = _block(num_features)
        _sum_backward_kernel[(weights_TK.numel(),)](
            grad_TD,
            y_MD,
            weights_TK.contiguous(),
            inverse_N,
            y_grad_MD,
            weights_grad_TK,
            grad_TD.stride(0),
            y_MD.stride(0),
            num_features,
            num_rows,
            K=weights_TK.shape[1],
            NUM_BLOCKS=triton.cdiv(num_features, block),
            BLOCK=block,
            num_warps=_NUM_WARPS,
        )
    return y_grad_MD, weights_grad_TK.to(weights_TK.dtype)


@triton.jit
def _count_kernel(
    experts_ptr,
    counts_ptr,
    num_slots,
    num_blocks,
    num_values,
    NUM_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    SLOTS: tl.constexpr,
):
    block = tl.program_id(0)
    slots = block.to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    experts = tl.load(experts_ptr + slots, mask=slots < num_slots, other=-1).to(tl.int32)
    for chunk in tl.static_range(NUM_CHUNKS):
        values = chunk * CHUNK + tl.arange(0, CHUNK)
        counts = tl.sum((experts[:, None] == values[None, :]).to(tl.int32), axis=0)
        tl.store(counts_ptr + values.to(tl.int64) * num_blocks + block, counts, mask=values < num_values)


@triton.jit
def _place_kernel(
    experts_ptr,
    starts_ptr,
    order_ptr,
    inverse_ptr,
    tokens_ptr,
    num_slots,
    num_blocks,
    num_choices,
    SLOTS: tl.constexpr,
):
    block = tl.program_id(0)
    lanes = tl.arange(0, SLOTS)
    slots = block.to(tl.int64) * SLOTS + lanes
    mask = slots < num_slots
    experts = tl.load(experts_ptr + slots, mask=mask, other=-1)
    before = (experts[:, None] == experts[None, :]) & (lanes[None, :] < lanes[:, None])
    rows = tl.sum(before.to(tl.int32), axis=1).to(tl.int64)
    rows += tl.load(starts_ptr + experts * num_blocks + block, mask=mask, other=0)
    tl.store(inverse_ptr + slots, rows, mask=mask)
    tl.store(order_ptr + rows, slots, mask=mask)
    tl.store(tokens_ptr + rows, slots // num_choices, mask=mask)


@triton.jit
def _copy_kernel(x_ptr, inverse_ptr, out_ptr, row_stride, num_features, num_rows, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    features = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = features < num_features
    x = tl.load(x_ptr + token * row_stride + features, mask=mask)
    for choice in tl.static_range(K):
        row = tl.load(inverse_ptr + token * K + choice)
        tl.store(out_ptr + row * num_features + features, x, mask=mask & (row < num_rows))


@triton.jit
def _sum_kernel(
    y_ptr,
    weights_ptr,
    inverse_ptr,
    out_ptr,
    row_stride,
    num_features,
    num_rows,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    features = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = features < num_features
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(K):
        row = tl.load(inverse_ptr + token * K + choice)
        y = tl.load(y_ptr + row * row_stride + features, mask=mask & (row < num_rows), other=0.0).to(tl.float32)
        if weights_ptr is not None:
            y *= tl.load(weights_ptr + token * K + choice).to(tl.float32)
        total += y
    tl.store(out_ptr + token * num_features + features, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sum_backward_kernel(
    grad_ptr,
    y_ptr,
    weights_ptr,
    inverse_ptr,
    y_grad_ptr,
    weights_grad_ptr,
    grad_stride,
    row_stride,
    num_features,
    num_rows,
    K: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64)
    row = tl.load(inverse_ptr + slot)
    weight = tl.load(weights_ptr + slot).to(tl.float32)
    products = tl.zeros((BLOCK,), dtype=tl.float32)
    for block in tl.static_range(NUM_BLOCKS):
        features = block * BLOCK + tl.arange(0, BLOCK)
        mask = (features < num_features) & (row < num_rows)
        grad = tl.load(grad_ptr + slot // K * grad_stride + features, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * row_stride + features, mask=mask, other=0.0).to(tl.float32)
        products += grad * y
        y_grad = (grad * weight).to(y_grad_ptr.dtype.element_ty)
        tl.store(y_grad_ptr + row * num_features + features, y_grad, mask=mask)
    tl.store(weights_grad_ptr + slot, tl.sum(products, axis=0))


def _rows(x: Tensor) -> Tensor:
    """`x` with features next to each other; rows may lie apart."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _block(num_features: int) -> int:
    return min(_FEATURES, triton.next_power_of_2(num_features))


@sort_slots.register_fake
def _(experts_N: Tensor, num_experts: int, num_choices: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    like_N = [experts_N.new_empty(experts_N.shape) for _ in range(3)]
    return *like_N, experts_N.new_empty(num_experts)  # type: ignore[return-value]


@copy_rows.register_fake
def _(x_TD: Tensor, inverse_N: Tensor, num_choices: int, num_rows: int) -> Tensor:
    return x_TD.new_empty(num_rows, x_TD.shape[1])


@sum_rows.register_fake
def _(y_MD: Tensor, weights_TK: Tensor | None, inverse_N: Tensor, num_choices: int) -> Tensor:
    return y_MD.new_empty(inverse_N.shape[0] // num_choices, y_MD.shape[1])


@sum_rows_backward.register_fake
def _(grad_TD: Tensor, y_MD: Tensor, weights_TK: Tensor, inverse_N: Tensor) -> tuple[Tensor, Tensor]:
    return y_MD.new_empty(y_MD.shape), weights_TK.new_empty(weights_TK.shape)


def _keep_places(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, inverse_N, ctx.num_choices, _ = inputs
    ctx.save_for_backward(inverse_N)


def _copy_gradients(ctx: Any, grad_MD: Tensor) -> tuple[Tensor | None, ...]:
    (inverse_N,) = ctx.saved_tensors
    return sum_rows(grad_MD, None, inverse_N, ctx.num_choices), None, None, None


def _keep_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    y_MD, weights_TK, inverse_N, ctx.num_choices = inputs
    ctx.num_rows = y_MD.shape[0]
    # Without weights the gradient does not depend on the rows.
    ctx.save_for_backward(None if weights_TK is None else y_MD, weights_TK, inverse_N)


def _sum_gradients(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
    y_MD, weights_TK, inverse_N = ctx.saved_tensors
    if weights_TK is None:
        return copy_rows(grad_TD, inverse_N, ctx.num_choices, ctx.num_rows), None, None, None
    return *sum_rows_backward(grad_TD, y_MD, weights_TK, inverse_N), None, None


copy_rows.register_autograd(_copy_gradients, setup_context=_keep_places)
sum_rows.register_autograd(_sum_gradients, setup_context=_keep_rows)
