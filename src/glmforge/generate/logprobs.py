"""Log-probabilities of tokens under a temperature and nothing else: what policy gradients take as the old policy's.

Temperature 0, which takes the likeliest token, counts as 1 here. Everything is fp32 or better.

Shapes: L tokens, V vocab_size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenLogprob(NamedTuple):
    """Of one token: its log-probability, the likeliest tokens with theirs, likeliest first, and those of the tokens
    that the request names."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    named: tuple[float, ...] = ()


def token_logprobs(
    logits_LV: Tensor,
    temperatures: Sequence[float],
    tokens: Sequence[int],
    num_top: Sequence[int],
    named: Sequence[Sequence[int]] = (),
) -> list[TokenLogprob]:
    """Of `tokens`, each with this many of the likeliest, and of those that are `named` at its place."""
    heat_L = torch.tensor([heat or 1.0 for heat in temperatures], dtype=logits_LV.dtype, device=logits_LV.device)
    logits_LV = logits_LV / heat_L[:, None]
    log_z_L = logits_LV.logsumexp(dim=-1)
    tokens_L = torch.tensor(tokens, device=logits_LV.device)
    chosen = (logits_LV.gather(1, tokens_L[:, None]).squeeze(1) - log_z_L).tolist()
    top: Sequence[tuple[tuple[int, float], ...]] = [()] * len(chosen)
    if most := max(num_top, default=0):
        largest_LK, ids_LK = logits_LV.topk(min(most, logits_LV.shape[1]), dim=-1)
        rows = zip(ids_LK.tolist(), (largest_LK - log_z_L[:, None]).tolist(), num_top, strict=True)
        top = [tuple(zip(ids[:number], logprobs[:number], strict=True)) for ids, logprobs, number in rows]
    told: list[tuple[float, ...]] = [()] * len(chosen)
    for row, ids in enumerate(named):
        if ids:
            told[row] = tuple((logits_LV[row, list(ids)] - log_z_L[row]).tolist())
    return [TokenLogprob(*one) for one in zip(chosen, top, told, strict=True)]
