"""Norm per head and partial rotary embedding of queries or keys, read and written once.

As PyTorch operations this is a norm, two products, two concatenations and an addition. Here a program takes a tile of
rows, one for each token and head, in three parts: the two halves that turn together and the dims that pass through.
Queries and keys are a launch each: keys are a twelfth of the queries, and one launch for both would take every argument
twice.

The backward pass recomputes a row's norm from the row that it reads anyway; without a norm it needs no row, only
angles. The weight's gradient is a sum over all rows, made in two stages without atomics as in
`glmforge.kernels.triton.rms_norm`: the same bits in every run.

Shapes: T tokens, H heads, P head_dim, R rotary dims; N = T * H rows.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from glmforge.kernels.triton.rms_norm import rows_each

_TILE = 2048
"""Elements that a program holds at once: 16 rows of head_dim 128. With more, registers leave room for one program."""


@torch.library.custom_op("glmforge::norm_rope", mutates_args=())
def norm_rope(x_THP: Tensor, cos_T1R: Tensor, sin_T1R: Tensor, weight_P: Tensor | None, eps: float) -> Tensor:
    """`x_THP` normed, if there is a weight, and turned; see `glmforge.kernels.qk_rope.qk_rope`."""
    x_THP = _unit_stride(x_THP)
    out_THP = x_THP.new_empty(x_THP.shape)
    num_rows = x_THP.shape[0] * x_THP.shape[1]
    tile = _tile(x_THP, cos_T1R)
    _forward_kernel[(triton.cdiv(num_rows, tile["ROWS"]),)](
        x_THP,
        cos_T1R,
        sin_T1R,
        weight_P,
        out_THP,
        num_rows,
        x_THP.shape[1],
        x_THP.stride(0),
        x_THP.stride(1),
        eps,
        NORMS=weight_P is not None,
        **tile,
    )
    return out_THP


@torch.library.custom_op("glmforge::norm_rope_backward", mutates_args=())
def norm_rope_backward(
    grad_THP: Tensor, x_THP: Tensor | None, cos_T1R: Tensor, sin_T1R: Tensor, weight_P: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weight; without a weight x may be None, and the weight's gradient has no elements."""
    grad_THP = _unit_stride(grad_THP)
    x_THP = grad_THP if x_THP is None else _unit_stride(x_THP)
    x_grad_THP = grad_THP.new_empty(grad_THP.shape)
    num_rows = grad_THP.shape[0] * grad_THP.shape[1]
    tile = _tile(grad_THP, cos_T1R)
    rows_of_one = rows_each(num_rows, tile["ROWS"])
    num_programs = max(1, triton.cdiv(num_rows, rows_of_one))
    partial_size = 0 if weight_P is None else grad_THP.shape[-1]
    partial_IP = grad_THP.new_empty(num_programs, partial_size, dtype=torch.float32)
    _backward_kernel[(num_programs,)](
        grad_THP,
        x_THP,
        cos_T1R,
        sin_T1R,
        weight_P,
        x_grad_THP,
        partial_IP,
        num_rows,
        rows_of_one,
        grad_THP.shape[1],
        grad_THP.stride(0),
        grad_THP.stride(1),
        x_THP.stride(0),
        x_THP.stride(1),
        eps,
        NORMS=weight_P is not None,
        **tile,
    )
    return x_grad_THP, partial_IP.sum(0).to(grad_THP.dtype if weight_P is None else weight_P.dtype)


@triton.jit
def _load(
    ptr, offsets, mask, dtype: tl.constexpr, P: tl.constexpr, R: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr
):
    """The three parts of rows that begin at `offsets` [n, 1], rounded to `dtype`, in float32."""
    half = tl.arange(0, HALF)[None, :]
    rest = tl.arange(0, REST)[None, :]
    turns = mask & (half < R // 2)
    first = tl.load(ptr + offsets + half, mask=turns, other=0.0)
    second = tl.load(ptr + offsets + R // 2 + half, mask=turns, other=0.0)
    passing = tl.load(ptr + offsets + R + rest, mask=mask & (rest < P - R), other=0.0)
    return first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32), passing.to(dtype).to(tl.float32)


@triton.jit
def _store(
    ptr, offsets, mask, first, second, passing, P: tl.constexpr, R: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr
):
    half = tl.arange(0, HALF)[None, :]
    rest = tl.arange(0, REST)[None, :]
    turns = mask & (half < R // 2)
    dtype = ptr.dtype.element_ty
    tl.store(ptr + offsets + half, first.to(dtype), mask=turns)
    tl.store(ptr + offsets + R // 2 + half, second.to(dtype), mask=turns)
    tl.store(ptr + offsets + R + rest, passing.to(dtype), mask=mask & (rest < P - R))


@triton.jit
def _angles(cos_ptr, sin_ptr, tokens, mask, R: tl.constexpr, HALF: tl.constexpr):
    half = tl.arange(0, HALF)[None, :]
    offsets = tokens * R + half
    turns = mask & (half < R // 2)
    cos = tl.load(cos_ptr + offsets, mask=turns, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + offsets, mask=turns, other=0.0).to(tl.float32)
    return cos, sin


@triton.jit
def _forward_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    num_heads,
    token_stride,
    head_stride,
    eps,
    NORMS: tl.constexpr,
    P: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    mask = rows < num_rows
    tokens = rows // num_heads
    dtype = out_ptr.dtype.element_ty
    offsets = tokens * token_stride + rows % num_heads * head_stride
    first, second, passing = _load(x_ptr, offsets, mask, dtype, P, R, HALF, REST)
    if NORMS:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1) + tl.sum(passing * passing, axis=1)
        rstd = tl.rsqrt(squares / P + eps)[:, None]
        always = tl.full((1, 1), 1, tl.int1)
        w_first, w_second, w_passing = _load(weight_ptr, tl.zeros((1, 1), tl.int64), always, dtype, P, R, HALF, REST)
        first = (w_first * (first * rstd).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        second = (w_second * (second * rstd).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        passing = w_passing * (passing * rstd).to(dtype).to(tl.float32)
    cos, sin = _angles(cos_ptr, sin_ptr, tokens, mask, R, HALF)
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    _store(out_ptr, rows * P, mask, turned_first, turned_second, passing, P, R, HALF, REST)


@triton.jit
def _backward_kernel(
    grad_ptr,
    x_ptr,
    cos_ptr,
    sin_ptr,
    weight_ptr,
    x_grad_ptr,
    partial_ptr,
    num_rows,
    rows_of_one,
    num_heads,
    grad_token_stride,
    grad_head_stride,
    x_token_stride,
    x_head_stride,
    eps,
    NORMS: tl.constexpr,
    P: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    dtype = x_grad_ptr.dtype.element_ty
    origin = tl.zeros((1, 1), tl.int64)
    always = tl.full((1, 1), 1, tl.int1)
    sum_first = tl.zeros((1, HALF), tl.float32)
    sum_second = tl.zeros((1, HALF), tl.float32)
    sum_passing = tl.zeros((1, REST), tl.float32)
    if NORMS:
        w_first, w_second, w_passing = _load(weight_ptr, origin, always, dtype, P, R, HALF, REST)
    start = tl.program_id(0) * rows_of_one
    stop = tl.minimum(start + rows_of_one, num_rows)
    while start < stop:  # the interpreter cannot take `range` of values that are not constants (numpy >= 2.4)
        rows = (start + tl.arange(0, ROWS))[:, None].to(tl.int64)
        mask = rows < num_rows
        tokens = rows // num_heads
        heads = rows % num_heads
        grad_offsets = tokens * grad_token_stride + heads * grad_head_stride
        turned_first, turned_second, passing = _load(grad_ptr, grad_offsets, mask, dtype, P, R, HALF, REST)
        cos, sin = _angles(cos_ptr, sin_ptr, tokens, mask, R, HALF)
        first = turned_first * cos + turned_second * sin
        second = turned_second * cos - turned_first * sin
        if NORMS:
            x_offsets = tokens * x_token_stride + heads * x_head_stride
            x_first, x_second, x_passing = _load(x_ptr, x_offsets, mask, dtype, P, R, HALF, REST)
            squares = (
                tl.sum(x_first * x_first, axis=1)
                + tl.sum(x_second * x_second, axis=1)
                + tl.sum(x_passing * x_passing, axis=1)
            )
            rstd = tl.rsqrt(squares / P + eps)[:, None]
            x_first, x_second, x_passing = x_first * rstd, x_second * rstd, x_passing * rstd
            sum_first += tl.sum(first * x_first.to(dtype).to(tl.float32), axis=0)[None, :]
            sum_second += tl.sum(second * x_second.to(dtype).to(tl.float32), axis=0)[None, :]
            sum_passing += tl.sum(passing * x_passing.to(dtype).to(tl.float32), axis=0)[None, :]
            first, second, passing = first * w_first, second * w_second, passing * w_passing
            along = (
                tl.sum(first * x_first, axis=1)
                + tl.sum(second * x_second, axis=1)
                + tl.sum(passing * x_passing, axis=1)
            )
            along = along[:, None] / P
            first = rstd * (first - along * x_first)
            second = rstd * (second - along * x_second)
            passing = rstd * (passing - along * x_passing)
        _store(x_grad_ptr, rows * P, mask, first, second, passing, P, R, HALF, REST)
        start += ROWS
    if NORMS:
        _store(partial_ptr, origin + tl.program_id(0) * P, always, sum_first, sum_second, sum_passing, P, R, HALF, REST)


def _unit_stride(x_THP: Tensor) -> Tensor:
    """Attention's gradients come with heads before tokens; only the elements of a head have to lie together."""
    return x_THP if x_THP.stride(-1) == 1 else x_THP.contiguous()


def _tile(x_THP: Tensor, cos_T1R: Tensor) -> dict[str, int]:
    """Sizes that the kernels are compiled for, rows that a program holds at once, and warps: 8 elements a thread."""
    head_dim, rotary_dim = x_THP.shape[-1], cos_T1R.shape[-1]
    half, rest = (triton.next_power_of_2(max(1, size)) for size in (rotary_dim // 2, head_dim - rotary_dim))
    rows = max(1, _TILE // triton.next_power_of_2(2 * half + rest))
    return {"P": head_dim, "R": rotary_dim, "ROWS": rows, "HALF": half, "REST": rest, "num_warps": 8}


@norm_rope.register_fake
def _(x_THP: Tensor, cos_T1R: Tensor, sin_T1R: Tensor, weight_P: Tensor | None, eps: float) -> Tensor:
    return x_THP.new_empty(x_THP.shape)


@norm_rope_backward.register_fake
def _(
    grad_THP: Tensor, x_THP: Tensor | None, cos_T1R: Tensor, sin_T1R: Tensor, weight_P: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    x_grad_THP = grad_THP.new_empty(grad_THP.shape)
    return x_grad_THP, grad_THP.new_empty(0) if weight_P is None else weight_P.new_empty(weight_P.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x_THP, cos_T1R, sin_T1R, weight_P, ctx.eps = inputs
    ctx.save_for_backward(None if weight_P is None else x_THP, cos_T1R, sin_T1R, weight_P)


def _gradients(ctx: Any, grad_THP: Tensor) -> tuple[Tensor | None, ...]:
    x_THP, cos_T1R, sin_T1R, weight_P = ctx.saved_tensors
    x_grad_THP, weight_grad_P = norm_rope_backward(grad_THP, x_THP, cos_T1R, sin_T1R, weight_P, ctx.eps)
    return x_grad_THP, None, None, None if weight_P is None else weight_grad_P, None


norm_rope.register_autograd(_gradients, setup_context=_keep)
