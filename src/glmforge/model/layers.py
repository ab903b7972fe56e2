"""The plain parts every block is made of: linear map, RMSNorm, SwiGLU.

Weights may be fp32 masters while the activations are bf16 (or the compute dtype): every weight is cast
to the activation's dtype where it is used, so precision is explicit and autocast is never needed. Where weight
and activation already agree the cast is free. Gradients come back in the weight's own dtype.

Shapes: T tokens, D hidden_size, F intermediate width of a SwiGLU, V vocab_size; E experts on this device.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glmforge.kernels.choice import ChoosesKernels
from glmforge.kernels.experts import expert_linear
from glmforge.kernels.rms_norm import add_rms_norm, rms_norm
from glmforge.model.placement import ONE_DEVICE, WHOLE_VOCABULARY, Region, Vocabulary, local


class Matmul(Protocol):
    """How a map multiplies by its weight: `y = x @ weight.T (+ bias)`.

    A map's `matmul` is `matmul` below, or what is put in its place: an adapter, a quantised weight, an fp8 product. It
    is a module where it has parameters of its own (of which it takes the `local` part), and calls the matmul that it
    replaces where it adds to it. It gets and gives this device's part of everything: a map cut by its inputs is summed
    over devices afterwards, so anything linear in `x` may be added here.
    """

    def __call__(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        """With `counts_E`, `weight` has one matrix per expert, [E, out, in], and `x` that many rows for each of them
        (int64), sorted by expert."""
        ...


def matmul(x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None) -> Tensor:
    """`Matmul` as it is written, in the dtype of `x`."""
    if counts_E is not None:
        assert bias is None, "experts have no bias"
        return expert_linear(x, weight, counts_E)
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class Linear(nn.Module):
    """`y = x @ weight.T (+ bias)`; weights start uninitialised and are filled by `model.init`.

    Where the weight is cut, by outputs or by inputs, y is a part of the outputs or of their sum: bringing x here and
    summing y is for the `Region` that the map lies in. `matmul` may be replaced, see `Matmul`.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.matmul: Matmul = matmul

    def forward(self, x: Tensor) -> Tensor:
        return self.matmul(x, local(self.weight), bias=None if self.bias is None else local(self.bias))

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.out_features}, bias={self.bias is not None}"


class Embedding(nn.Module):
    """Rows of `weight` [V, D] by token id, zeros for a negative id; starts uninitialised. `lookup` may be replaced."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.region: Region = ONE_DEVICE
        self.vocabulary: Vocabulary = WHOLE_VOCABULARY
        self.lookup: Callable[[Tensor, Tensor], Tensor] = F.embedding

    def forward(self, ids_T: Tensor) -> Tensor:
        weight_VD = local(self.weight)
        rows_T, absent_T = self.vocabulary.rows(ids_T, len(weight_VD))
        x_TD = self.lookup(rows_T, weight_VD)
        return self.region.leave(x_TD.masked_fill(absent_T.unsqueeze(-1), 0))


class RMSNorm(ChoosesKernels, nn.Module):
    """Root-mean-square norm over the last dim: fp32 inside, cast back, then times the weight (the published order)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, implementation=self.kernels.rms_norm)

    def after_adding(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """`x + y` and its norm."""
        return add_rms_norm(x, y, self.weight, self.eps, implementation=self.kernels.rms_norm)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))` without bias: the dense layers' MLP and the shared expert."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)
        self.region: Region = ONE_DEVICE

    def forward(self, x_TD: Tensor) -> Tensor:
        x_TD = self.region.enter(x_TD)
        return self.region.leave(self.down_proj(F.silu(self.gate_proj(x_TD)) * self.up_proj(x_TD)))
