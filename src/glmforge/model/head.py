"""The output projection and what is asked of it: logits, cross-entropy, log-probabilities, the likeliest token.

Callers ask the head rather than multiply by its weight, because the vocabulary may be spread over ranks: then no rank
ever has all logits of a token, and each question is answered from parts (`glmforge.model.placement.Vocabulary`).

Shapes: T tokens, t tokens of this rank where ranks share them (else t = T), D hidden_size, V vocab_size, or the part of
it on this rank.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glmforge.kernels.cross_entropy import linear_cross_entropy_sum, token_nll
from glmforge.model.layers import Embedding
from glmforge.model.placement import ONE_DEVICE, WHOLE_VOCABULARY, Region, Vocabulary, local

_GREEDY_CHUNK_TOKENS = 2048


class LMHead(nn.Module):
    """Published name `lm_head`: weight [V, D], no bias. Called, it gives logits [T, V] in the compute dtype.

    With tied embeddings it has no weight of its own (see `tie`).
    """

    _tied: tuple[Embedding, ...] = ()

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.region: Region = ONE_DEVICE
        self.vocabulary: Vocabulary = WHOLE_VOCABULARY

    def tie(self, embedding: Embedding) -> None:
        """Take the weight of `embedding` for the head's, now and whatever becomes of it (cut, sharded, loaded).

        The model then has one parameter, under the embedding's name: its gradient is that of both uses.
        """
        del self.weight
        self._tied = (embedding,)  # in a tuple, or it would count as a module of the head's

    def __getattr__(self, name: str) -> Any:  # asked only for what is not found otherwise
        if name == "weight" and self._tied:
            return self._tied[0].weight
        return super().__getattr__(name)

    def forward(self, h_tD: Tensor) -> Tensor:
        return self._logits(self.region.enter(h_tD))

    def cross_entropy_sum(self, h_tD: Tensor, labels_T: Tensor, nll_T: Tensor | None = None) -> Tensor:
        """Summed -log p(label), fp32 or better, differentiable; labels of -100 do not count.

        Where ranks share the vocabulary, this is the rank's share: summed over them, it is the sum. The summands are
        written to `nll_T` (zeros before, fp32 or better) if it is given.
        """
        h_TD, weight_VD = self.region.enter(h_tD), local(self.weight)
        shard = self.vocabulary.shard(len(weight_VD))
        return linear_cross_entropy_sum(h_TD, weight_VD, labels_T, shard=shard, nll_T=nll_T)

    def token_nll(self, h_tD: Tensor, labels_T: Tensor) -> Tensor:
        """-log p(label) of each token, fp32 or better, differentiable, 0 where the label is -100."""
        h_TD, weight_VD = self.region.enter(h_tD), local(self.weight)
        return token_nll(h_TD, weight_VD, labels_T, shard=self.vocabulary.shard(len(weight_VD)))

    @torch.no_grad()
    def greedy(self, h_tD: Tensor) -> Tensor:
        """The likeliest token of each position, int64 [T]; logits are made for a slice of the tokens at a time."""
        h_TD = self.region.enter(h_tD)
        largest = [self._logits(rows_CD).max(dim=-1) for rows_CD in h_TD.split(_GREEDY_CHUNK_TOKENS)]
        logits_T, rows_T = (torch.cat(parts) for parts in zip(*largest, strict=True))
        return self.vocabulary.likeliest(logits_T, rows_T, len(local(self.weight)))

    def _logits(self, h_TD: Tensor) -> Tensor:
        return F.linear(h_TD, local(self.weight).to(h_TD.dtype))
