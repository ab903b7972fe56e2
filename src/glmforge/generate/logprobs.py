"""Log-probabilities of tokens under a temperature and nothing else: what policy gradients take as the old policy's.

Temperature 0, which takes the likeliest token, counts as 1 here. Everything is fp32 or better.

Shapes: L tokens, V vocab_size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenLogprob(NamedTuple):
    """Of one token: its log-probability, and the likeliest tokens with theirs, likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(
    logits_LV: Tensor, temperatures: Sequence[float], tokens: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprob]:
    """Of `tokens`, each with this many of the likeliest."""
    heat_L = torch.tensor([heat or 1.0 for heat in temperatures], dtype=logits_LV.dtype, device=logits_LV.device)
    logits_LV = logits_LV / heat_L[:, None]
    log_z_L = logits_LV.logsumexp(dim=-1)
    tokens_L = torch.tensor(tokens, device=logits_LV.device)
    chosen = (logits_LV.gather(1, tokens_L[:, None]).squeeze(1) - log_z_L).tolist()
    most = max(num_top, default=0)
    if most == 0:
        return [TokenLogprob(logprob) for logprob in chosen]
    largest_LK, ids_LK = logits_LV.topk(min(most, logits_LV.shape[1]), dim=-1)
    rows = zip(chosen, ids_LK.tolist(), (largest_LK - log_z_L[:, None]).tolist(), num_top, strict=True)
    return [
        TokenLogprob(logprob, tuple(zip(ids[:number], logprobs[:number], strict=True)))
        for logprob, ids, logprobs, number in rows
    ]
