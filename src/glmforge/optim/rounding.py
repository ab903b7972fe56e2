"""Optimizer states in bf16: computed in fp32, rounded stochastically when they are stored.

A momentum of 0.95 moves a state by at most a twentieth a step, a second moment often by less than bf16's spacing of
2^-8: rounded to the nearest, such changes are lost for good. Rounded up with a probability of the share of the spacing
that lies below, the stored value is right in the mean, and errors average out over steps (Gupta et al., 2015, arXiv
1502.02551; for optimizer states Zamirai et al., 2021, arXiv 2010.06192).

The random bits are a pure function of (seed, name of the state, number of the parameter's update, global row, column),
so every layout, every copy and a resumed run round alike.
"""

import hashlib

import torch
from torch import Tensor

from glmforge.kernels.random import fold, uniform_bits
from glmforge.optim.sharding import own_spans

_BITS = 16
"""That fp32 has and bf16 has not."""


def stream_of(seed: int, state: str) -> Tensor:
    """The stream of random bits for a state, an int64 scalar on the CPU; `state` is its name in a checkpoint."""
    digest = hashlib.sha256(f"{seed}/{state}".encode()).digest()
    return torch.tensor(int.from_bytes(digest[:8], "little", signed=True))


def row_streams(stream: Tensor, step: Tensor, parameter: Tensor) -> tuple[Tensor, int]:
    """A stream for each row of this rank's part of a parameter, and the number of the part's first column.

    The streams, int64, are expanded over the columns, so that taking a part of the parameter takes theirs with
    it. A row is what varies in the last dim alone. `step`, a scalar, counts the updates of the parameter.
    """
    *leading, (first_column, stop_column) = own_spans(parameter)
    row = torch.zeros((), dtype=torch.int64, device=parameter.device)
    for length, span in zip(parameter.shape, leading, strict=False):
        row = row.unsqueeze(-1) * length + torch.arange(*span, device=parameter.device)
    keys = fold(fold(stream, step.to(parameter.device, torch.int64)), row)
    return keys.unsqueeze(-1).expand(*row.shape, stop_column - first_column), first_column


def round_stochastically(values: Tensor, bits: Tensor) -> Tensor:
    """bf16 neighbours of fp32 `values`: away from zero if `bits`, int32 in [0, 2^16), carry over. The mean is exact."""
    carried = (values.view(torch.int32) + bits) & -(1 << _BITS)
    # Bits added to a NaN could make a number of it.
    return torch.where(values.isnan(), values, carried.view(torch.float32)).to(torch.bfloat16)


def store(state: Tensor, values: Tensor, streams: Tensor, first_column: int) -> None:
    """Write fp32 `values` into `state`, bf16 of the same shape; `streams` are those of `row_streams` for this part."""
    if state.numel():
        state.copy_(round_stochastically(values, uniform_bits(streams.select(-1, 0), first_column, state.shape[-1])))
