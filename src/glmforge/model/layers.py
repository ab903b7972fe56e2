"""The plain parts every block is made of: linear map, RMSNorm, SwiGLU.

Weights may be fp32 masters while the activations are bf16 (or whatever the compute dtype is): every weight is cast
to the activation's dtype where it is used, so precision is explicit and autocast is never needed. Where weight
and activation already agree the cast is free. Gradients come back in the weight's own dtype.

Shapes: T tokens, D hidden_size, F intermediate width of a SwiGLU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """`y = x @ weight.T (+ bias)`; weights start uninitialised and are filled by `model.init`."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.out_features}, bias={self.bias is not None}"


class Embedding(nn.Module):
    """Rows of `weight` [V, D] by token id, zeros for a negative id; starts uninitialised."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, ids_T: Tensor) -> Tensor:
        rows_TD = F.embedding(ids_T.clamp(min=0), self.weight)
        return rows_TD.masked_fill((ids_T < 0).unsqueeze(-1), 0)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dim: fp32 inside, cast back, then times the weight (the published order)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * normed.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))` without bias: the dense layers' MLP and the shared expert."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_TD)) * self.up_proj(x_TD))
