"""The expert-wise linear map: rows sorted by expert, each row times its own expert's matrix.

Experts are two such maps with an ordinary SwiGLU between them (`glmforge.model.moe`), which torch.compile fuses with
its surroundings. Backends:

- `loop`: one `F.linear` after the other, differentiated by autograd. The reference.
- `grouped`: `F.grouped_mm`, one kernel for all experts; no number ever leaves the device. For CUDA.
- `sliced`: for the CPU, a custom operator (so that neither torch.compile nor a fake tensor has to look inside) in which
  every matmul writes straight into a slice of its result. Autograd through `loop` copies every slice once more.

The CPU's bfloat16 matmuls are compiled for each shape they meet, some 0.3 ms each, and every step brings new numbers of
rows per expert: in a training step that took as long as the matmuls themselves. So `sliced` rounds the rows up to a
multiple of 32, and few shapes remain. See `row_slices` for why nothing is copied for it.

Where no gradient is wanted and rows are few, as in generation, reading the weights is what takes time: `sliced` then
leaves the work to the native kernels (`glmforge.kernels.native`), which share all experts' weights among the threads
and compile nothing for a shape; but not `as_in_training`.

Shapes: N rows, E experts, J input and O output features.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels.native import calls as native
from glmforge.kernels.target import automatic, kernel_device, unknown_implementation

BF16_ROW_MULTIPLE = 32
FEW_ROWS = 1024
"""Of all experts together, at most this many rows are left to the native kernels."""

_in_training: ContextVar[bool] = ContextVar("in_training", default=False)


def expert_linear(x_NJ: Tensor, weight_EOJ: Tensor, counts_E: Tensor, *, implementation: str = "auto") -> Tensor:
    """y_NO: every row times its expert's matrix.

    Args:
        x_NJ: rows sorted by expert.
        weight_EOJ: cast to x's dtype for the matmuls (master weights may be float32 while x is bfloat16); the gradient
            returns in its own dtype.
        counts_E: int64, rows per expert, summing to N. An expert without rows gets zero gradients.
        implementation: a name of `IMPLEMENTATIONS`, or "auto": "sliced" on the CPU, else "grouped".
    """
    implementation = _chosen(x_NJ, implementation)
    if implementation == "sliced" and is_for_native(x_NJ, weight_EOJ):
        return native.expert_linear(x_NJ, weight_EOJ, counts_E)
    return IMPLEMENTATIONS[implementation](x_NJ, weight_EOJ.to(x_NJ.dtype), counts_E)


def is_sliced(x_NJ: Tensor, implementation: str) -> bool:
    """Whether `expert_linear` takes these rows by the implementation "sliced"."""
    return _chosen(x_NJ, implementation) == "sliced"


def _chosen(x_NJ: Tensor, implementation: str) -> str:
    if implementation == "auto":
        return automatic("experts", kernel_device(x_NJ.device), x_NJ.dtype)
    if implementation not in IMPLEMENTATIONS:
        raise unknown_implementation("experts", implementation, IMPLEMENTATIONS)
    return implementation


@contextmanager
def as_in_training() -> Iterator[None]:
    """Within, forward passes without a gradient take the kernels of those with one: both agree to the last bit."""
    token = _in_training.set(True)
    try:
        yield
    finally:
        _in_training.reset(token)


def is_for_native(x_NJ: Tensor, weight_EOJ: Tensor) -> bool:
    """Whether "sliced" leaves the work to the native kernels."""
    return (
        not torch.is_grad_enabled()
        and 0 < len(x_NJ) <= FEW_ROWS
        and not torch.compiler.is_compiling()
        and not _in_training.get()
        and type(x_NJ) is Tensor  # has memory, as a fake one has not
        and x_NJ.device.type == "cpu"
        and (x_NJ.dtype == weight_EOJ.dtype or weight_EOJ.dtype == torch.float32)
        and weight_EOJ.is_contiguous()
        and native.is_available(x_NJ.dtype, weight_EOJ.dtype)
    )


def _loop_linear(x_NJ: Tensor, weight_EOJ: Tensor, counts_E: Tensor) -> Tensor:
    # unbind, not weight[e]: the backward of indexing fills a whole [E, O, J] with zeros for every expert.
    pairs = zip(x_NJ.split(counts_E.tolist()), weight_EOJ.unbind(0), strict=True)
    return torch.cat([F.linear(x, weight) for x, weight in pairs])


def _grouped_linear(x_NJ: Tensor, weight_EOJ: Tensor, counts_E: Tensor) -> Tensor:
    # The counts sum to N, so every row is written. (grouped_mm leaves rows past the last offset uninitialised.)
    return F.grouped_mm(x_NJ, weight_EOJ.transpose(1, 2), offs=counts_E.cumsum(0).to(torch.int32))


def _sliced_linear(x_NJ: Tensor, weight_EOJ: Tensor, counts_E: Tensor) -> Tensor:
    return _sliced_mm(x_NJ, weight_EOJ.transpose(1, 2), counts_E)


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "loop": _loop_linear,
    "grouped": _grouped_linear,
    "sliced": _sliced_linear,
}


@torch.library.custom_op("glmforge::sliced_mm", mutates_args=())
def _sliced_mm(x_NJ: Tensor, weight_EJO: Tensor, counts_E: Tensor) -> Tensor:
    """y_NO: the rows of each expert times its matrix."""
    y_NO = x_NJ.new_empty(len(x_NJ), weight_EJO.shape[2])
    weights = weight_EJO.unbind(0)
    for expert, start, _, stop in row_slices(counts_E, x_NJ.dtype):
        torch.mm(x_NJ[start:stop], weights[expert], out=y_NO[start:stop])
    return y_NO


@torch.library.custom_op("glmforge::sliced_outer", mutates_args=())
def _sliced_outer(x_NJ: Tensor, grad_NO: Tensor, counts_E: Tensor) -> Tensor:
    """w_EJO: x^T @ grad over the rows of each expert, zero for an expert without rows."""
    num_experts, num_in, num_out = len(counts_E), x_NJ.shape[1], grad_NO.shape[1]
    w_EJO = x_NJ.new_empty(num_experts, num_in, num_out)
    outputs = w_EJO.unbind(0)
    for expert, start, end, stop in row_slices(counts_E, x_NJ.dtype):
        # Rows of the next expert count for nothing when one of the factors is zero there: the narrower is copied.
        x, grad = x_NJ[start:stop], grad_NO[start:stop]
        if stop > end and num_in < num_out:
            x = F.pad(x_NJ[start:end], (0, 0, 0, stop - end))
        elif stop > end:
            grad = F.pad(grad_NO[start:end], (0, 0, 0, stop - end))
        torch.mm(x.t(), grad, out=outputs[expert])
    for expert, count in enumerate(counts_E.tolist()):
        if count == 0:
            outputs[expert].zero_()
    return w_EJO


def row_slices(counts_E: Tensor, dtype: torch.dtype) -> Iterator[tuple[int, int, int, int]]:
    """(expert, start, end, stop) of each expert with rows, in order. [start, end) are its own, [start, stop) computed.

    In bfloat16 `stop - start` is rounded up, and runs over into the next experts' rows. Whatever is written there, the
    next expert overwrites. At the tensor's end there is nothing to run into, and the last shapes stay odd.
    """
    multiple = BF16_ROW_MULTIPLE if dtype == torch.bfloat16 else 1
    counts = counts_E.tolist()
    num_rows, start = sum(counts), 0
    for expert, count in enumerate(counts):
        if count:
            rounded = -(-count // multiple) * multiple
            yield expert, start, start + count, min(start + rounded, num_rows)
        start += count


@_sliced_mm.register_fake
def _(x_NJ: Tensor, weight_EJO: Tensor, counts_E: Tensor) -> Tensor:
    return x_NJ.new_empty(x_NJ.shape[0], weight_EJO.shape[2])


@_sliced_outer.register_fake
def _(x_NJ: Tensor, grad_NO: Tensor, counts_E: Tensor) -> Tensor:
    return x_NJ.new_empty(counts_E.shape[0], x_NJ.shape[1], grad_NO.shape[1])


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    x_NJ, weight_EJO, counts_E = inputs
    of_x, of_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x_NJ if of_weight else None, weight_EJO if of_x else None, counts_E)


def _sliced_mm_backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x_NJ, weight_EJO, counts_E = ctx.saved_tensors
    x_grad_NJ = None if weight_EJO is None else _sliced_mm(grad_NO, weight_EJO.transpose(1, 2), counts_E)
    weight_grad_EJO = None if x_NJ is None else _sliced_outer(grad_NO, x_NJ, counts_E).transpose(1, 2)
    return x_grad_NJ, weight_grad_EJO, None


_sliced_mm.register_autograd(_sliced_mm_backward, setup_context=_save_inputs)
