"""Partial rotary position embedding in the NeoX half-split layout.

The first `rotary_dim` dims of each head rotate (dim i pairs with dim i + rotary_dim / 2), the rest pass through.
Angles, cosines and sines are computed in fp32 from the positions of the batch and shared by all layers; the base
may change between phases (it grows with the sequence length), so no table is stored.

Shapes: T tokens, H heads, P head_dim, R rotary dims.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """Cosine and sine of every token's angles, `[T, 1, R]`, in the compute dtype."""

    cos_T1R: Tensor
    sin_T1R: Tensor

    @classmethod
    def at(cls, positions_T: Tensor, rotary_dim: int, theta: float, dtype: torch.dtype) -> "Rope":
        """Rotation for tokens at the given positions inside their documents; `inv_freq = theta^(-2i/R)`."""
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions_T.device) / rotary_dim
        angles_TR = (positions_T.float()[:, None] * theta**-exponents).repeat(1, 2)
        return cls(angles_TR.cos().to(dtype)[:, None], angles_TR.sin().to(dtype)[:, None])

    def rotate(self, x_THP: Tensor) -> Tensor:
        """Rotate the first R dims of every head; the others pass through."""
        rotary_dim = self.cos_T1R.shape[-1]
        turning, passing = x_THP[..., :rotary_dim], x_THP[..., rotary_dim:]
        first, second = turning.chunk(2, dim=-1)
        turned = turning * self.cos_T1R + torch.cat((-second, first), dim=-1) * self.sin_T1R
        return torch.cat((turned, passing), dim=-1)
