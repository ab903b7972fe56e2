"""The output projection and what is asked of it: logits, cross-entropy, log-probabilities, the likeliest token.

Callers ask the head rather than multiply by its weight, because the vocabulary may be spread over ranks: then no rank
ever has all logits of a token, and each question is answered from parts (`glmforge.parallel.vocabulary`).

Shapes: T tokens, D hidden_size, V vocab_size.
"""

from typing import Any

import torch
from torch import Tensor

from glmforge.kernels.cross_entropy import linear_cross_entropy_sum, token_nll
from glmforge.model.layers import Embedding, Linear

_GREEDY_CHUNK_TOKENS = 2048


class LMHead(Linear):
    """Published name `lm_head`: weight [V, D], no bias. Called, it gives logits [T, V] in the compute dtype.

    With tied embeddings it has no weight of its own (see `tie`).
    """

    _tied: tuple[Embedding, ...] = ()

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

    def cross_entropy_sum(self, h_TD: Tensor, labels_T: Tensor, nll_T: Tensor | None = None) -> Tensor:
        """Summed -log p(label), fp32 or better, differentiable; labels of -100 do not count.

        Where ranks share the vocabulary, this is the rank's share: summed over them, it is the sum. The summands are
        written to `nll_T` (zeros before, fp32 or better) if it is given.
        """
        return linear_cross_entropy_sum(h_TD, self.weight, labels_T, nll_T=nll_T)

    def token_nll(self, h_TD: Tensor, labels_T: Tensor) -> Tensor:
        """-log p(label) of each token, fp32 or better, differentiable, 0 where the label is -100."""
        return token_nll(h_TD, self.weight, labels_T)

    @torch.no_grad()
    def greedy(self, h_TD: Tensor) -> Tensor:
        """The likeliest token of each position, int64 [T]; logits are made for a slice of the tokens at a time."""
        return torch.cat([self(rows_CD).argmax(dim=-1) for rows_CD in h_TD.split(_GREEDY_CHUNK_TOKENS)])
