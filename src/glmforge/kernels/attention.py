"""Causal grouped-query attention inside the documents of a packed batch."""

import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels.documents import Documents


def attention(q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, documents: Documents, *, backend: str = "auto") -> Tensor:
    """o_THP: softmax(q k^T * P**-0.5) v over the earlier tokens of each token's own document.

    Query head h reads key/value head h // (H / G).
    """
    ids_T = documents.ids_T()
    T = len(ids_T)
    mask_TT = (ids_T[:, None] == ids_T) & torch.ones(T, T, dtype=torch.bool, device=ids_T.device).tril()
    q_HTP, k_GTP, v_GTP = (x.transpose(0, 1).unsqueeze(0) for x in (q_THP, k_TGP, v_TGP))
    o = F.scaled_dot_product_attention(q_HTP, k_GTP, v_GTP, attn_mask=mask_TT, enable_gqa=True)
    return o.squeeze(0).transpose(0, 1)


def cached_attention(q_BSHP: Tensor, k_BLGP: Tensor, v_BLGP: Tensor, past_lengths_B: Tensor) -> Tensor:
    """o_BSHP: attention of new tokens over a key/value cache, rows of different length side by side.

    Position p of row b lies in slot p of the cache. The S new tokens of row b stand at positions
    past_lengths_B[b] + [0, S), and their keys and values have been written to these slots already. Each sees the
    slots up to its own. So a prompt shorter than S is padded on the right: what its padding returns is to be
    ignored, and the slots behind its end are overwritten by the tokens that follow.

    Args:
        k_BLGP, v_BLGP: the cache, or its first L slots; L >= max(past_lengths_B) + S.
        past_lengths_B: int64, tokens already in each row before this call.
    """
    S, L = q_BSHP.shape[1], k_BLGP.shape[1]
    positions_BS = past_lengths_B[:, None] + torch.arange(S, device=q_BSHP.device)
    mask_B1SL = (torch.arange(L, device=q_BSHP.device) <= positions_BS[:, :, None]).unsqueeze(1)
    q, k, v = (x.transpose(1, 2) for x in (q_BSHP, k_BLGP, v_BLGP))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B1SL, enable_gqa=True).transpose(1, 2)
