"""SwiGLU experts over rows sorted by expert."""

import torch
from torch import Tensor
from torch.nn import functional as F

BACKENDS = ("auto", "loop", "grouped")


def expert_mlp(
    x_ND: Tensor, counts_E: Tensor, gate_up_E2ID: Tensor, down_EDI: Tensor, *, backend: str = "auto"
) -> Tensor:
    """y_ND: row n through its expert, down(silu(gate(x)) * up(x)).

    Args:
        x_ND: rows sorted by expert.
        counts_E: int64, rows per expert, summing to N.
        gate_up_E2ID: gate rows first, then up rows; cast to x's dtype at use, gradients return in its own.
        down_EDI: likewise.
    """
    gate_up_E2ID, down_EDI = gate_up_E2ID.to(x_ND.dtype), down_EDI.to(x_ND.dtype)
    return _loop(x_ND, counts_E, gate_up_E2ID, down_EDI)


def _loop(x_ND: Tensor, counts_E: Tensor, gate_up_E2ID: Tensor, down_EDI: Tensor) -> Tensor:
    y = []
    rows_per_expert = x_ND.split(counts_E.tolist())
    for x, gate_up, down in zip(rows_per_expert, gate_up_E2ID.unbind(0), down_EDI.unbind(0), strict=True):
        gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
        y.append(F.linear(F.silu(gate) * up, down))
    return torch.cat(y)
