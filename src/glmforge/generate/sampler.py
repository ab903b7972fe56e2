"""The next token of each sequence from its logits.

A draw is a function of the request's seed, the number of the sample and the place of the token: the number that decides
it is the same whatever else is in the batch.

Shapes: L sequences, V vocab_size.
"""

from collections import abc

import torch
from torch import Tensor

from glmforge.generate.sequence import Sequence
from glmforge.kernels.random import fold


def choose_tokens(logits_LV: Tensor, sequences: abc.Sequence[Sequence]) -> list[int]:
    """A token for each row."""
    greedy_L = logits_LV.argmax(dim=-1)
    temperatures = [sequence.request.params.temperature for sequence in sequences]
    if not any(temperatures):
        return greedy_L.tolist()
    heat_L = torch.tensor(temperatures, dtype=logits_LV.dtype, device=logits_LV.device)
    probabilities_LV = (logits_LV / heat_L.clamp(min=1e-6)[:, None]).softmax(dim=-1)
    sums_LV = probabilities_LV.double().cumsum(dim=-1)
    drawn_L = torch.searchsorted(sums_LV, (_uniform(sequences, logits_LV.device) * sums_LV[:, -1])[:, None], right=True)
    return torch.where(heat_L > 0, drawn_L.squeeze(1).clamp(max=logits_LV.shape[1] - 1), greedy_L).tolist()


def _uniform(sequences: abc.Sequence[Sequence], device: torch.device) -> Tensor:
    """float64 [L] in [0, 1)."""
    seeds, samples, places = (
        torch.tensor(values)
        for values in zip(
            *((one.request.params.seed or 0, one.sample, len(one.tokens)) for one in sequences), strict=True
        )
    )
    bits_L = fold(fold(seeds, samples), places)
    return ((bits_L >> 11) & (2**53 - 1)).double().mul(2.0**-53).to(device)
