"""Score given text: the loss of every token and whether the MTP layer would have guessed like the trunk.

Logits are made for a slice of the tokens at a time, never for all of them.

Shapes: T tokens, D hidden_size, V vocab_size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.kernels.cross_entropy import IGNORE_INDEX

_CHUNK_TOKENS = 2048


@dataclass(frozen=True)
class TokenScores:
    """`nll_T` fp32 (0 where there is no label) and `greedy_T` int64, the most likely token."""

    nll_T: Tensor
    greedy_T: Tensor


class ScoringHead:
    """`head` for `GlmMoe.forward` in evaluation; scores depth 0 against the labels, deeper ones only greedily."""

    def __init__(self, labels_T: Tensor) -> None:
        self.labels_T = labels_T

    def __call__(self, h_TD: Tensor, weight_VD: Tensor, depth: int) -> TokenScores:
        weight_VD = weight_VD.to(h_TD.dtype)
        scores = [
            self._score(h_TD[start : start + _CHUNK_TOKENS], weight_VD, self.labels_T[start : start + _CHUNK_TOKENS])
            for start in range(0, len(h_TD), _CHUNK_TOKENS)
        ]
        return TokenScores(torch.cat([s.nll_T for s in scores]), torch.cat([s.greedy_T for s in scores]))

    @staticmethod
    def _score(h_TD: Tensor, weight_VD: Tensor, labels_T: Tensor) -> TokenScores:
        logits_TV = F.linear(h_TD, weight_VD).float()
        nll_T = F.cross_entropy(logits_TV, labels_T, ignore_index=IGNORE_INDEX, reduction="none")
        return TokenScores(nll_T, logits_TV.argmax(dim=-1))
