"""x x^T for matrices in a batch: one triangle of tiles is computed, the other mirrored.

Two of the three products of a Newton-Schulz step are symmetric: the Gram matrix of x, and the square of the Gram
matrix. With n tiles to a side, n (n + 1) / 2 of n^2 are computed: 52 % for 4,096 rows. The mirrored half costs a
transposed write of what is in registers already. The square's sum with the Gram matrix itself is made before the tile
is written.

Each element is one program's sum over the inner dim in a fixed order: the same bits in every run.

Shapes: N matrices, A rows, B inner dim.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 128
"""Rows and columns of a tile."""

_INNER = 64


@torch.library.custom_op("glmforge::symmetric_matmul", mutates_args=())
def symmetric_matmul(x_NAB: Tensor, plus_NAA: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    """`alpha * x @ x^T + beta * plus`, in the dtype of x, summed in float32; `plus_NAA` is symmetric and contiguous.

    Raises `NotImplementedError` for bfloat16 on the CPU: Triton's interpreter multiplies its bit patterns as integers.
    """
    if x_NAB.dtype == torch.bfloat16 and not x_NAB.is_cuda:
        raise NotImplementedError(
            "symmetric_matmul: Triton's interpreter cannot multiply bfloat16; use plain on the CPU"
        )
    return launch(x_NAB, plus_NAA, alpha, beta)


def launch(x_NAB: Tensor, plus_NAA: Tensor | None, alpha: float, beta: float) -> Tensor:
    num_matrices, num_rows, num_inner = x_NAB.shape
    out_NAA = x_NAB.new_empty(num_matrices, num_rows, num_rows)
    num_tiles = triton.cdiv(num_rows, _ROWS)
    _kernel[(num_tiles * (num_tiles + 1) // 2, num_matrices)](
        x_NAB,
        plus_NAA,
        out_NAA,
        num_rows,
        *x_NAB.stride(),
        alpha,
        beta,
        B=num_inner,
        ADDS=plus_NAA is not None,
        ROWS=_ROWS,
        INNER=_INNER,
        num_warps=8,
        num_stages=4,
    )
    return out_NAA


@triton.jit
def _kernel(
    x_ptr,
    plus_ptr,
    out_ptr,
    num_rows,
    matrix_stride,
    row_stride,
    inner_stride,
    alpha,
    beta,
    B: tl.constexpr,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
):
    # Tiles of the lower triangle in order of rows: tile i * (i + 1) / 2 is the first of row i.
    tile = tl.program_id(0)
    i = ((tl.sqrt(8.0 * tile.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    i = tl.where(i * (i + 1) // 2 > tile, i - 1, i)  # the root is rounded
    i = tl.where((i + 1) * (i + 2) // 2 <= tile, i + 1, i)
    j = tile - i * (i + 1) // 2
    rows = i * ROWS + tl.arange(0, ROWS)
    columns = j * ROWS + tl.arange(0, ROWS)
    inner = tl.arange(0, INNER)
    x_ptr += tl.program_id(1).to(tl.int64) * matrix_stride
    left_ptrs = x_ptr + rows.to(tl.int64)[:, None] * row_stride + inner[None, :] * inner_stride
    right_ptrs = x_ptr + columns.to(tl.int64)[None, :] * row_stride + inner[:, None] * inner_stride
    total = tl.zeros((ROWS, ROWS), tl.float32)
    for start in range(0, B, INNER):
        left_mask = (rows < num_rows)[:, None] & (start + inner < B)[None, :]
        right_mask = (columns < num_rows)[None, :] & (start + inner < B)[:, None]
        left = tl.load(left_ptrs, mask=left_mask, other=0.0)
        right = tl.load(right_ptrs, mask=right_mask, other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
        left_ptrs += INNER * inner_stride
        right_ptrs += INNER * inner_stride
    out = tl.program_id(1).to(tl.int64) * num_rows * num_rows
    offsets = out + rows.to(tl.int64)[:, None] * num_rows + columns[None, :]
    mask = (rows < num_rows)[:, None] & (columns < num_rows)[None, :]
    total = alpha * total
    if ADDS:
        total += beta * tl.load(plus_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    total = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, total, mask=mask)
    if i != j:
        mirrored = out + columns.to(tl.int64)[:, None] * num_rows + rows[None, :]
        mirrored_mask = (columns < num_rows)[:, None] & (rows < num_rows)[None, :]
        tl.store(out_ptr + mirrored, tl.trans(total), mask=mirrored_mask)


@symmetric_matmul.register_fake
def _(x_NAB: Tensor, plus_NAA: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    return x_NAB.new_empty(x_NAB.shape[0], x_NAB.shape[1], x_NAB.shape[1])
