"""The angles of rotary position embedding; `glmforge.kernels.qk_rope` turns queries and keys by them.

Angles, cosines and sines are computed in fp32 from the positions of the batch and shared by all layers; the base
may change between phases (it grows with the sequence length), so no table is stored.

Shapes: T tokens, R rotary dims.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """Cosine and sine of every token's angles, `[T, 1, R]`, in the compute dtype; dims i and i + R / 2 turn alike."""

    cos_T1R: Tensor
    sin_T1R: Tensor

    @classmethod
    def at(cls, positions_T: Tensor, rotary_dim: int, theta: float, dtype: torch.dtype) -> "Rope":
        """Rotation for tokens at the given positions inside their documents; `inv_freq = theta^(-2i/R)`."""
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions_T.device) / rotary_dim
        angles_TR = (positions_T.float()[:, None] * theta**-exponents).repeat(1, 2)
        return cls(angles_TR.cos().to(dtype)[:, None], angles_TR.sin().to(dtype)[:, None])
