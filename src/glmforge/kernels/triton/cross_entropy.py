"""Softmax statistics and the gradient of the loss in the logits' own buffer: no float32 copy of a chunk's logits.

`glmforge.kernels.cross_entropy` makes a chunk's logits by a matrix product and turns them into the loss's gradient in
place. As PyTorch operations that takes two float32 copies (2.5 GB each for 4,096 tokens of 151,552 logits); here the
logits are read twice and written once in their own type, and everything in float32 stays in registers.

Two kernels, because between them the ranks that share a vocabulary exchange what the first one finds of a token: the
largest logit, the sum of exponentials and the label's logit. No sum crosses programs, so results are the same bits in
every run.

Logits in memory, or none at all (Cut Cross-Entropy, Wijmans et al., 2024, arXiv 2411.09009)? docs/kernels.md compares.

Shapes: C tokens of a chunk, V rows of the vocabulary on this rank.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 8192
"""Logits of a token that a program holds at once."""


@torch.library.custom_op("glmforge::logit_statistics", mutates_args=())
def logit_statistics(logits_CV: Tensor, labels_C: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each token, float32: largest logit, sum of exp(logit - largest), and the label's logit.

    `labels_C` counts from the vocabulary's first row, `logits_CV` from row `first`; the label's logit is 0 where it is
    not among these.
    """
    num_tokens, num_logits = logits_CV.shape
    max_C, sum_C, label_C = (logits_CV.new_empty(num_tokens, dtype=torch.float32) for _ in range(3))
    _statistics_kernel[(num_tokens,)](
        logits_CV,
        labels_C.contiguous(),
        max_C,
        sum_C,
        label_C,
        first,
        logits_CV.stride(0),
        V=num_logits,
        COLUMNS=_COLUMNS,
        num_warps=16,
    )
    return max_C, sum_C, label_C


@torch.library.custom_op("glmforge::logits_to_gradient", mutates_args=("logits_CV",))
def logits_to_gradient_(logits_CV: Tensor, labels_C: Tensor, first: int, log_z_C: Tensor, factor_C: Tensor) -> None:
    """Overwrite the logits by `factor * exp(logit - log_z) - onehot(label)`."""
    num_tokens, num_logits = logits_CV.shape
    _gradient_kernel[(num_tokens, triton.cdiv(num_logits, _COLUMNS))](
        logits_CV,
        labels_C.contiguous(),
        log_z_C,
        factor_C,
        first,
        num_logits,
        logits_CV.stride(0),
        COLUMNS=_COLUMNS,
        num_warps=16,
    )


@triton.jit
def _statistics_kernel(
    logits_ptr,
    labels_ptr,
    max_ptr,
    sum_ptr,
    label_ptr,
    first,
    stride,
    V: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0)
    row_ptr = logits_ptr + token.to(tl.int64) * stride
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, V, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        logits = tl.load(row_ptr + columns, mask=columns < V, other=float("-inf")).to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(logits, axis=0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(logits - new_largest), axis=0)
        largest = new_largest
    label = tl.load(labels_ptr + token) - first
    is_here = (label >= 0) & (label < V)
    label_logit = tl.load(row_ptr + label, mask=is_here, other=0.0).to(tl.float32)
    tl.store(max_ptr + token, largest)
    tl.store(sum_ptr + token, total)
    tl.store(label_ptr + token, label_logit)


@triton.jit
def _gradient_kernel(
    logits_ptr,
    labels_ptr,
    log_z_ptr,
    factor_ptr,
    first,
    num_logits,
    stride,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ptrs = logits_ptr + token.to(tl.int64) * stride + columns
    logits = tl.load(ptrs, mask=columns < num_logits, other=0.0).to(tl.float32)
    gradient = tl.load(factor_ptr + token) * tl.exp(logits - tl.load(log_z_ptr + token))
    gradient -= tl.where(columns == tl.load(labels_ptr + token) - first, 1.0, 0.0)
    tl.store(ptrs, gradient.to(logits_ptr.dtype.element_ty), mask=columns < num_logits)


@logit_statistics.register_fake
def _(logits_CV: Tensor, labels_C: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    max_C, sum_C, label_C = (logits_CV.new_empty(len(logits_CV), dtype=torch.float32) for _ in range(3))
    return max_C, sum_C, label_C


@logits_to_gradient_.register_fake
def _(logits_CV: Tensor, labels_C: Tensor, first: int, log_z_C: Tensor, factor_C: Tensor) -> None:
    return None
