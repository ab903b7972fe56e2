"""RMSNorm, with or without the residual addition before it, in one pass over memory in either direction.

Written as PyTorch operations, the addition and the norm read or write the hidden states five times in the forward
pass (more where nothing fuses them), here four times; the backward pass reads h and two gradients and writes one. A row
stays in registers between its sum of squares and its use, so nothing but h is kept for the backward pass.

The weight's gradient is a sum over all rows. Each program adds up a run of rows, and a second stage adds up the
programs; the number of programs follows from the number of rows alone. There are no atomics: the result is the same
bits in every run. Sums, also those that the plain form rounds to bfloat16, are float32.

Shapes: D the last dim; N rows, all dims before it; h = x + y.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_MAX_PARTIAL_SUMS = 264
"""Programs of the backward pass: two for each of the 132 multiprocessors of an H100."""

_TILE = 4096
"""Elements that a program holds at once, if rows are short: 32 rows of head_dim 128, one of hidden_size 4096."""


@torch.library.custom_op("glmforge::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`glmforge.kernels.rms_norm.rms_norm`."""
    x_ND = _rows(x)
    out_ND = torch.empty_like(x_ND)
    _launch_forward(x_ND, None, weight_D, None, out_ND, eps)
    return out_ND.view(x.shape)


@torch.library.custom_op("glmforge::add_rms_norm", mutates_args=())
def add_rms_norm(x: Tensor, y: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`glmforge.kernels.rms_norm.add_rms_norm`."""
    x_ND, y_ND = _rows(x), _rows(y)
    h_ND, out_ND = torch.empty_like(x_ND), torch.empty_like(x_ND)
    _launch_forward(x_ND, y_ND, weight_D, h_ND, out_ND, eps)
    return h_ND.view(x.shape), out_ND.view(x.shape)


@torch.library.custom_op("glmforge::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    h: Tensor, weight_D: Tensor, grad_out: Tensor, grad_h: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Gradients of h and of the weight; `grad_h` is what h gets from elsewhere."""
    h_ND, grad_out_ND = _rows(h), _rows(grad_out)
    grad_h_ND = None if grad_h is None else _rows(grad_h)
    num_rows, num_columns = h_ND.shape
    grad_ND = torch.empty_like(h_ND)
    rows_at_once, columns, num_warps = _tile(num_columns)
    rows_of_one = rows_each(num_rows, rows_at_once)
    num_programs = max(1, triton.cdiv(num_rows, rows_of_one))
    partial_PD = torch.empty(num_programs, num_columns, dtype=torch.float32, device=h.device)
    _backward_kernel[(num_programs,)](
        h_ND,
        weight_D,
        grad_out_ND,
        grad_h_ND,
        grad_ND,
        partial_PD,
        num_rows,
        num_columns,
        rows_of_one,
        eps,
        ADDS=grad_h is not None,
        ROWS=rows_at_once,
        COLUMNS=columns,
        num_warps=num_warps,
    )
    return grad_ND.view(h.shape), partial_PD.sum(0).to(weight_D.dtype)


def rows_each(num_rows: int, rows_at_once: int) -> int:
    """Rows that a program of a backward pass adds up, a multiple of those that it holds at once.

    It depends on the number of rows alone, so the order of a sum does not depend on the device.
    """
    return max(1, triton.cdiv(num_rows, _MAX_PARTIAL_SUMS * rows_at_once)) * rows_at_once


@triton.jit
def _forward_kernel(
    x_ptr,
    y_ptr,
    weight_ptr,
    h_ptr,
    out_ptr,
    num_rows,
    num_columns,
    eps,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = (rows < num_rows) & (columns < num_columns)
    offsets = rows * num_columns + columns
    dtype = out_ptr.dtype.element_ty
    h = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        h = (h + tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)).to(dtype)
        tl.store(h_ptr + offsets, h, mask=mask)
        h = h.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(h * h, axis=1) / num_columns + eps)
    normed = (h * rstd[:, None]).to(dtype).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < num_columns, other=0.0).to(dtype).to(tl.float32)
    tl.store(out_ptr + offsets, (weight * normed).to(dtype), mask=mask)


@triton.jit
def _backward_kernel(
    h_ptr,
    weight_ptr,
    grad_out_ptr,
    grad_h_ptr,
    grad_ptr,
    partial_ptr,
    num_rows,
    num_columns,
    rows_of_one,
    eps,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.arange(0, COLUMNS)[None, :]
    in_row = columns < num_columns
    dtype = grad_ptr.dtype.element_ty
    weight = tl.load(weight_ptr + columns, mask=in_row, other=0.0).to(dtype).to(tl.float32)
    weight_grad = tl.zeros((1, COLUMNS), dtype=tl.float32)
    start = tl.program_id(0) * rows_of_one
    stop = tl.minimum(start + rows_of_one, num_rows)
    while start < stop:  # the interpreter cannot take `range` of values that are not constants (numpy >= 2.4)
        rows = (start + tl.arange(0, ROWS))[:, None].to(tl.int64)
        mask = (rows < num_rows) & in_row
        offsets = rows * num_columns + columns
        h = tl.load(h_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        grad_out = tl.load(grad_out_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(h * h, axis=1) / num_columns + eps)[:, None]
        normed = h * rstd
        weight_grad += tl.sum(grad_out * normed.to(dtype).to(tl.float32), axis=0)[None, :]
        grad_normed = grad_out * weight
        along = tl.sum(grad_normed * normed, axis=1)[:, None] / num_columns
        grad = rstd * (grad_normed - along * normed)
        if ADDS:
            grad += tl.load(grad_h_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(grad_ptr + offsets, grad.to(dtype), mask=mask)
        start += ROWS
    tl.store(partial_ptr + tl.program_id(0) * num_columns + columns, weight_grad, mask=in_row)


def _launch_forward(
    x_ND: Tensor, y_ND: Tensor | None, weight_D: Tensor, h_ND: Tensor | None, out_ND: Tensor, eps: float
) -> None:
    num_rows, num_columns = x_ND.shape
    rows_at_once, columns, num_warps = _tile(num_columns)
    _forward_kernel[(triton.cdiv(num_rows, rows_at_once),)](
        x_ND,
        y_ND,
        weight_D,
        h_ND,
        out_ND,
        num_rows,
        num_columns,
        eps,
        ADDS=y_ND is not None,
        ROWS=rows_at_once,
        COLUMNS=columns,
        num_warps=num_warps,
    )


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def _tile(num_columns: int) -> tuple[int, int, int]:
    """Rows and columns that a program holds at once (powers of two), and its warps: 16 elements for each thread."""
    columns = triton.next_power_of_2(num_columns)
    rows = max(1, _TILE // columns)
    return rows, columns, max(4, min(16, rows * columns // 512))


@rms_norm.register_fake
def _(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


@add_rms_norm.register_fake
def _(x: Tensor, y: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


@rms_norm_backward.register_fake
def _(h: Tensor, weight_D: Tensor, grad_out: Tensor, grad_h: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), weight_D.new_empty(weight_D.shape)


def _keep_input(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight_D, ctx.eps = inputs
    ctx.save_for_backward(x, weight_D)


def _keep_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, weight_D, ctx.eps = inputs
    ctx.save_for_backward(output[0], weight_D)


def _norm_gradients(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    return (*rms_norm_backward(*ctx.saved_tensors, grad_out, None, ctx.eps), None)


def _add_norm_gradients(ctx: Any, grad_h: Tensor, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    grad, weight_grad_D = rms_norm_backward(*ctx.saved_tensors, grad_out, grad_h, ctx.eps)
    return grad, grad, weight_grad_D, None


rms_norm.register_autograd(_norm_gradients, setup_context=_keep_input)
add_rms_norm.register_autograd(_add_norm_gradients, setup_context=_keep_sum)
