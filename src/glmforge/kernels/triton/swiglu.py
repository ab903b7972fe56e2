"""SwiGLU's product and its gradient, in one pass over memory each, on gate and up as one matmul leaves them.

Plain PyTorch reads and writes an [N, I] matrix 5 times in the forward pass (silu, product) and some 11 times in the
backward pass, and copies both halves' gradients together; here it is 3 and 5 (7 with recomputing the product, which is
not needed). Nothing is kept but the input. A row's weight costs 4 bytes, and its gradient is summed where the row is
read anyway.

One program takes one row, so the sum over its features has one order: no atomics, the same bits in every run. Sums and
products are float32.

Shapes: N rows, I features.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _NUM_WARPS = 512, 2
"""Features at a time, 8 for each thread: 16 bytes of bfloat16, the widest load. I = 1,408 and 1,536 waste 8 and 0 %."""


@torch.library.custom_op("glmforge::swiglu", mutates_args=())
def swiglu(gate_up_N2I: Tensor, weights_N: Tensor | None) -> Tensor:
    """`glmforge.kernels.swiglu.swiglu`."""
    gate_up_N2I, weights_N = _rows(gate_up_N2I), _vector(weights_N)
    num_rows, width = gate_up_N2I.shape[0], gate_up_N2I.shape[1] // 2
    out_NI = gate_up_N2I.new_empty(num_rows, width)
    if out_NI.numel():
        _forward_kernel[(num_rows,)](
            gate_up_N2I,
            weights_N,
            out_NI,
            gate_up_N2I.stride(0),
            width,
            NUM_BLOCKS=triton.cdiv(width, _BLOCK),
            BLOCK=_BLOCK,
            num_warps=_NUM_WARPS,
        )
    return out_NI


@torch.library.custom_op("glmforge::swiglu_backward", mutates_args=())
def swiglu_backward(gate_up_N2I: Tensor, weights_N: Tensor | None, grad_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `gate_up_N2I` and of the weights, the latter only with weights."""
    gate_up_N2I, grad_NI = _rows(gate_up_N2I), _rows(grad_NI)
    num_rows, width = grad_NI.shape
    grad_N2I = torch.empty_like(gate_up_N2I, memory_format=torch.contiguous_format)
    weights_grad_N = torch.empty(0 if weights_N is None else num_rows, dtype=torch.float32, device=grad_NI.device)
    if grad_NI.numel():
        _backward_kernel[(num_rows,)](
            gate_up_N2I,
            _vector(weights_N),
            grad_NI,
            grad_N2I,
            weights_grad_N,
            gate_up_N2I.stride(0),
            grad_NI.stride(0),
            width,
            NUM_BLOCKS=triton.cdiv(width, _BLOCK),
            BLOCK=_BLOCK,
            num_warps=_NUM_WARPS,
        )
    return grad_N2I, weights_grad_N if weights_N is None else weights_grad_N.to(weights_N.dtype)


@triton.jit
def _forward_kernel(
    gate_up_ptr, weights_ptr, out_ptr, row_stride, width, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    gate_ptr = gate_up_ptr + row * row_stride
    weight = 1.0
    if weights_ptr is not None:
        weight = tl.load(weights_ptr + row).to(tl.float32)
    for block in tl.static_range(NUM_BLOCKS):
        columns = block * BLOCK + tl.arange(0, BLOCK)
        mask = columns < width
        gate = tl.load(gate_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(gate_ptr + width + columns, mask=mask, other=0.0).to(tl.float32)
        out = gate * tl.sigmoid(gate) * up * weight
        tl.store(out_ptr + row * width + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
    gate_up_ptr,
    weights_ptr,
    grad_ptr,
    grad_gate_up_ptr,
    weights_grad_ptr,
    row_stride,
    grad_stride,
    width,
    NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    gate_ptr = gate_up_ptr + row * row_stride
    grad_gate_ptr = grad_gate_up_ptr + row * 2 * width
    dtype = grad_gate_up_ptr.dtype.element_ty
    weight = 1.0
    if weights_ptr is not None:
        weight = tl.load(weights_ptr + row).to(tl.float32)
    products = tl.zeros((BLOCK,), dtype=tl.float32)
    for block in tl.static_range(NUM_BLOCKS):
        columns = block * BLOCK + tl.arange(0, BLOCK)
        mask = columns < width
        gate = tl.load(gate_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(gate_ptr + width + columns, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + columns, mask=mask, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        products += grad * silu * up
        grad *= weight
        tl.store(grad_gate_ptr + width + columns, (grad * silu).to(dtype), mask=mask)
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        tl.store(grad_gate_ptr + columns, (grad * up * slope).to(dtype), mask=mask)
    if weights_ptr is not None:
        tl.store(weights_grad_ptr + row, tl.sum(products, axis=0))


def _rows(x: Tensor) -> Tensor:
    """`x` with features next to each other; rows may lie apart."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _vector(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


@swiglu.register_fake
def _(gate_up_N2I: Tensor, weights_N: Tensor | None) -> Tensor:
    return gate_up_N2I.new_empty(gate_up_N2I.shape[0], gate_up_N2I.shape[1] // 2)


@swiglu_backward.register_fake
def _(gate_up_N2I: Tensor, weights_N: Tensor | None, grad_NI: Tensor) -> tuple[Tensor, Tensor]:
    weights_grad_N = (
        grad_NI.new_empty(0, dtype=torch.float32) if weights_N is None else weights_N.new_empty(grad_NI.shape[0])
    )
    return gate_up_N2I.new_empty(gate_up_N2I.shape), weights_grad_N


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad_NI: Tensor) -> tuple[Tensor, Tensor | None]:
    gate_up_N2I, weights_N = ctx.saved_tensors
    grad_N2I, weights_grad_N = swiglu_backward(gate_up_N2I, weights_N, grad_NI)
    return grad_N2I, None if weights_N is None else weights_grad_N


swiglu.register_autograd(_gradients, setup_context=_keep_inputs)
