"""Values of tensors that were read, looked at: a file can be whole, and what was once stored in it be NaN.

Said when it is read, this names the file; found in the first step, it looks like a learning rate that is too high.
"""

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from glmforge.checkpoint.collective import run_each
from glmforge.errors import CheckpointError
from glmforge.optim.sharding import local_part


def crc32_of(tensor: Tensor) -> int:
    """CRC-32 of the bytes of a plain tensor in row-major order."""
    return zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def check_values(
    source: object,
    tensors: Mapping[str, Tensor],
    *,
    least: float = -math.inf,
    fix: str = "use another checkpoint",
) -> None:
    """Check that all values are finite, and `least` or more. All ranks call this together, each with its part.

    Raises `CheckpointError`, on all ranks, that names `source`, the first tensor where they are not, and the `fix`.
    """

    def check() -> None:
        for name, tensor in tensors.items():
            part = local_part(tensor)
            if not part.is_floating_point() or not part.numel():
                continue
            low, high = (float(value) for value in part.aminmax())  # NaN if there is any
            if not (math.isfinite(low) and math.isfinite(high) and low >= least):
                wrong = "not finite" if least == -math.inf else f"not finite or below {least:g}"
                raise CheckpointError(f"{source}: {name} has values that are {wrong}; {fix}")

    run_each(check)
