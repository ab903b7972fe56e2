"""Numbers of the host onto a device without waiting for it.

`torch.tensor(values, device="cuda")` and `tensor.to("cuda")` wait until the GPU has done all that it was given before:
ordinary memory may change or move while the GPU reads it. From page-locked memory it fetches in its own time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(
    values: Tensor | Sequence[float] | Sequence[Sequence[int]],
    device: torch.device | str | None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`values` as a tensor on `device` (None: the CPU); what lies there already is not copied."""
    tensor, target = torch.as_tensor(values, dtype=dtype), torch.device(device or "cpu")
    if target.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(target, non_blocking=True)
