"""What happens to queries and keys between their projection and attention: RMSNorm per head, and rotary embedding.

GLM-4.5 and 4.6 norm the queries and keys of each head, with one weight for all heads; GLM-4.5-Air does not. The
embedding is partial: the first R dims of each head turn, dim i with dim i + R / 2 (the NeoX half-split layout), the
others pass through.

Shapes: T tokens, H query heads, G key heads, P head_dim, R rotary dims.
"""

import torch
from torch import Tensor

from glmforge.kernels.rms_norm import rms_norm


def qk_rope(
    q_THP: Tensor,
    k_TGP: Tensor,
    cos_T1R: Tensor,
    sin_T1R: Tensor,
    q_weight_P: Tensor | None,
    k_weight_P: Tensor | None,
    eps: float,
    *,
    implementation: str = "plain",
) -> tuple[Tensor, Tensor]:
    """Queries and keys, normed where they have weights, then turned; in their own dtype.

    Args:
        cos_T1R: of each token's angles, in the dtype of q; dims i and i + R / 2 have the same. No gradient.
        implementation: "plain" or "triton", which reads and writes them once.
    """
    if implementation == "triton":
        from glmforge.kernels.triton.qk_rope import norm_rope

        q_THP = norm_rope(q_THP, cos_T1R, sin_T1R, q_weight_P, eps)
        return q_THP, norm_rope(k_TGP, cos_T1R, sin_T1R, k_weight_P, eps)
    if q_weight_P is not None:
        q_THP = rms_norm(q_THP, q_weight_P, eps)
    if k_weight_P is not None:
        k_TGP = rms_norm(k_TGP, k_weight_P, eps)
    return rotate(q_THP, cos_T1R, sin_T1R), rotate(k_TGP, cos_T1R, sin_T1R)


def rotate(x_THP: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> Tensor:
    """Turn the first R dims of every head."""
    rotary_dim = cos_T1R.shape[-1]
    turning, passing = x_THP[..., :rotary_dim], x_THP[..., rotary_dim:]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos_T1R + torch.cat((-second, first), dim=-1) * sin_T1R
    return torch.cat((turned, passing), dim=-1)
