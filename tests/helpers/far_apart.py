"""Tensors whose elements are further apart in memory than 32-bit integers count."""

import torch
from torch import Tensor


def far_apart(rows: Tensor) -> Tensor:
    """A copy of three rows, the last of which lies more than 2^31 elements behind the first (4 GiB of addresses in
    bfloat16, of which a CPU gives memory to what is touched)."""
    assert len(rows) == 3
    stride = 2**30 + 8
    memory = torch.empty(2 * stride + rows.shape[1], dtype=rows.dtype, device=rows.device)
    return memory.as_strided(rows.shape, (stride, 1)).copy_(rows)
