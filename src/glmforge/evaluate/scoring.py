"""Score given text: the loss of every token and the model's own choice at each.

Shapes: T tokens, o the rank's own ones, D hidden_size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.model.head import Heads


@dataclass(frozen=True)
class TokenScores:
    """Of the rank's own tokens: `nll_o` fp32 (0 without a label) and `greedy_o` int64, the most likely token."""

    nll_o: Tensor
    greedy_o: Tensor


class ScoringHead:
    """`head` for `GlmMoe.forward` in evaluation. Depths beyond the first are not scored against the labels but have
    their choice compared with the trunk's."""

    def __init__(self, labels_T: Tensor) -> None:
        self.labels_T = labels_T

    def __call__(self, h_TD: Tensor, heads: Heads, depth: int) -> TokenScores:
        if depth == 0:
            return TokenScores(heads.lm.token_nll(h_TD, self.labels_T), heads.lm.greedy(h_TD))
        greedy_o = heads.lm.greedy(h_TD)
        return TokenScores(torch.zeros_like(greedy_o, dtype=torch.float32), greedy_o)
