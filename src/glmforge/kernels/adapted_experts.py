"""The expert-wise linear map with a low-rank adapter: y = x W^T + scaling (x A^T) B^T, each row by its own expert's.

As single operations (`expert_linear` three times) the outputs are written twice and added once more, and so are the
gradients of the inputs. On the CPU those passes over all rows take longer than the products by A and B. So beside the
frozen weight there is, for the implementation "sliced", one operator for all: of each expert in turn it computes the
product by W and adds that by B to it, while the rows are in the cache; the backward pass adds up the two gradients of
the inputs in the same way. Other implementations, and weights that are trained too, compute by single operations.

In bfloat16 the sum is rounded once instead of three times.

Shapes: N rows, E experts, J input and O output features, r rank.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels.experts import expert_linear, is_for_native, is_sliced, row_slices


def adapted_expert_linear(
    x_NJ: Tensor,
    weight_EOJ: Tensor,
    a_ErJ: Tensor,
    b_EOr: Tensor,
    counts_E: Tensor,
    *,
    scaling: float,
    implementation: str = "auto",
) -> Tensor:
    """y_NO. Rows, counts and `implementation` as in `expert_linear`; a and b are cast as the weight is."""
    is_frozen = not (torch.is_grad_enabled() and weight_EOJ.requires_grad)
    if is_frozen and is_sliced(x_NJ, implementation) and not is_for_native(x_NJ, weight_EOJ):
        weight_EOJ, a_ErJ, b_EOr = (factor.to(x_NJ.dtype) for factor in (weight_EOJ.detach(), a_ErJ, b_EOr))
        y_NO, _ = _adapted_mm(x_NJ, weight_EOJ, a_ErJ, b_EOr, counts_E, scaling)
        return y_NO
    y_NO = expert_linear(x_NJ, weight_EOJ, counts_E, implementation=implementation)
    return y_NO + low_rank(x_NJ, a_ErJ, b_EOr, counts_E, scaling=scaling, implementation=implementation)


def low_rank(
    x_NJ: Tensor, a_ErJ: Tensor, b_EOr: Tensor, counts_E: Tensor, *, scaling: float, implementation: str = "auto"
) -> Tensor:
    """What the adapter adds, [N, O], for a base of another kind."""
    low_Nr = expert_linear(x_NJ, a_ErJ, counts_E, implementation=implementation) * scaling
    return expert_linear(low_Nr, b_EOr, counts_E, implementation=implementation)


@torch.library.custom_op("glmforge::adapted_mm", mutates_args=())
def _adapted_mm(
    x_NJ: Tensor, weight_EOJ: Tensor, a_ErJ: Tensor, b_EOr: Tensor, counts_E: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """y_NO, and x A^T [N, r] for the backward pass."""
    y_NO, low_Nr = x_NJ.new_empty(len(x_NJ), weight_EOJ.shape[1]), x_NJ.new_empty(len(x_NJ), a_ErJ.shape[1])
    matrices = [matrix.transpose(1, 2).unbind(0) for matrix in (weight_EOJ, a_ErJ, b_EOr)]
    for expert, start, _, stop in row_slices(counts_E, x_NJ.dtype):
        weight, a, b = (of_experts[expert] for of_experts in matrices)
        x, y, low = x_NJ[start:stop], y_NO[start:stop], low_Nr[start:stop]
        torch.mm(x, weight, out=y)
        torch.mm(x, a, out=low)
        y.addmm_(low, b, alpha=scaling)
    return y_NO, low_Nr


@torch.library.custom_op("glmforge::adapted_mm_backward", mutates_args=())
def _adapted_mm_backward(
    grad_NO: Tensor,
    x_NJ: Tensor,
    low_Nr: Tensor,
    weight_EOJ: Tensor,
    a_ErJ: Tensor,
    b_EOr: Tensor,
    counts_E: Tensor,
    scaling: float,
    of_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, which is empty unless it is requested by `of_x`, of a and of b."""
    x_grad_NJ = torch.empty_like(x_NJ) if of_x else x_NJ.new_empty(0)
    a_grad_ErJ, b_grad_EOr = torch.zeros_like(a_ErJ), torch.zeros_like(b_EOr)
    matrices = [matrix.unbind(0) for matrix in (weight_EOJ, a_ErJ, b_EOr, a_grad_ErJ, b_grad_EOr)]
    for expert, start, end, stop in row_slices(counts_E, x_NJ.dtype):
        weight, a, b, a_grad, b_grad = (of_experts[expert] for of_experts in matrices)
        x, grad = x_NJ[start:stop], grad_NO[start:stop]
        low_grad = torch.mm(grad, b)
        if of_x:
            torch.mm(grad, weight, out=x_grad_NJ[start:stop])
            x_grad_NJ[start:stop].addmm_(low_grad, a, alpha=scaling)
        # Rows of the next experts count for nothing when one of the factors is zero there.
        low_grad[end - start :].zero_()
        low = F.pad(low_Nr[start:end], (0, 0, 0, stop - end))
        torch.mm(low_grad.t(), x, out=a_grad)
        torch.mm(grad.t(), low, out=b_grad)
    return x_grad_NJ, a_grad_ErJ.mul_(scaling), b_grad_EOr.mul_(scaling)


@_adapted_mm.register_fake
def _(
    x_NJ: Tensor, weight_EOJ: Tensor, a_ErJ: Tensor, b_EOr: Tensor, counts_E: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    num_rows = x_NJ.shape[0]
    return x_NJ.new_empty(num_rows, weight_EOJ.shape[1]), x_NJ.new_empty(num_rows, a_ErJ.shape[1])


@_adapted_mm_backward.register_fake
def _(
    grad_NO: Tensor,
    x_NJ: Tensor,
    low_Nr: Tensor,
    weight_EOJ: Tensor,
    a_ErJ: Tensor,
    b_EOr: Tensor,
    counts_E: Tensor,
    scaling: float,
    of_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x_grad_NJ = torch.empty_like(x_NJ) if of_x else x_NJ.new_empty(0)
    return x_grad_NJ, torch.empty_like(a_ErJ), torch.empty_like(b_EOr)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_NJ, weight_EOJ, a_ErJ, b_EOr, counts_E, ctx.scaling = inputs
    ctx.save_for_backward(x_NJ, output[1], weight_EOJ, a_ErJ, b_EOr, counts_E)


def _backward(ctx: Any, grad_NO: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    of_x = ctx.needs_input_grad[0]
    x_grad, a_grad, b_grad = _adapted_mm_backward(grad_NO, *ctx.saved_tensors, ctx.scaling, of_x)
    return x_grad if of_x else None, None, a_grad, b_grad, None, None


_adapted_mm.register_autograd(_backward, setup_context=_save)
