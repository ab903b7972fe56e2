"""The heads: the output projection with what is requested of it, and linear maps for scores and values.

Callers ask the head rather than multiply by its weight, because the vocabulary may be spread over ranks: then no rank
ever has all logits of a token, and each question is answered from parts (`glmforge.model.placement.Vocabulary`).

What a head says of single tokens it says of this rank's own: every token's answer is on exactly one of the ranks that
share rows, so that a sum over them is the sum over all ranks' parts, and so is its gradient.

Shapes: T tokens, t tokens of this rank where ranks share them (else t = T), o the rank's own tokens (T / tp), D
hidden_size, V vocab_size, or the part of it on this rank.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glmforge.errors import GlmforgeError
from glmforge.kernels.choice import ChoosesKernels
from glmforge.kernels.cross_entropy import linear_cross_entropy_sum, token_nll
from glmforge.kernels.entropy import token_entropy
from glmforge.model.layers import Embedding
from glmforge.model.placement import ONE_DEVICE, WHOLE_VOCABULARY, Region, Vocabulary, local

_GREEDY_CHUNK_TOKENS = 2048


class LMHead(ChoosesKernels, nn.Module):
    """Published name `lm_head`: weight [V, D], no bias. Called, it gives logits [T, V] in the compute dtype.

    With tied embeddings it has no weight of its own (see `tie`). `operands` may be replaced: it gives the hidden states
    and the weight (this device's part) whose product the logits are, from those that there are.
    """

    _tied: tuple[Embedding, ...] = ()

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.region: Region = ONE_DEVICE
        self.vocabulary: Vocabulary = WHOLE_VOCABULARY
        self.operands: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = as_they_are

    def tie(self, embedding: Embedding) -> None:
        """Use the weight of `embedding` for the head, also after it is cut, sharded or loaded.

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

    @torch.no_grad()
    def whole_logits(self, h_tD: Tensor, rows_L: Tensor) -> Tensor:
        """Logits [L, V] over the whole vocabulary of some of the T tokens, on every rank that shares them."""
        h_TD = self.region.enter(h_tD)
        return self.vocabulary.whole(self._logits(h_TD[rows_L]))

    def cross_entropy_sum(
        self,
        h_tD: Tensor,
        labels_T: Tensor,
        nll_T: Tensor | None = None,
        *,
        weights_T: Tensor | None = None,
        z_weight: float = 0.0,
        log_z_T: Tensor | None = None,
    ) -> Tensor:
        """Summed -log p(label) + z_weight * (log Z)^2, fp32 or better, differentiable; labels of -100 do not count.

        Each summand counts `weights_T` (float32) times; None: once. Z is the sum of the exponentials of a token's
        logits. Where ranks share the vocabulary, this is the rank's share: summed over them, it is the sum. Each
        token's -log p(label) is written to `nll_T`, its log Z to `log_z_T` (zeros before, fp32 or better) if they are
        given.
        """
        h_TD, weight_VD = self.operands(self.region.enter(h_tD), local(self.weight))
        return linear_cross_entropy_sum(
            h_TD,
            weight_VD,
            labels_T,
            weights_T,
            shard=self.vocabulary.shard(len(weight_VD)),
            nll_T=nll_T,
            z_weight=z_weight,
            log_z_T=log_z_T,
            implementation=self.kernels.cross_entropy,
        )

    def token_nll(self, h_tD: Tensor, labels_T: Tensor) -> Tensor:
        """nll_o: -log p(label) of the rank's own tokens, fp32 or better, differentiable, 0 where the label is -100."""
        h_TD, weight_VD = self.operands(self.region.enter(h_tD), local(self.weight))
        shard = self.vocabulary.shard(len(weight_VD))
        nll_T = token_nll(h_TD, weight_VD, labels_T, shard=shard, implementation=self.kernels.cross_entropy)
        return self.vocabulary.own(nll_T)

    def token_nll_and_entropy(self, h_tD: Tensor, labels_T: Tensor) -> tuple[Tensor, Tensor]:
        """`token_nll`, and from the same product, without gradient, the entropy_o of the distributions of tokens with a
        label."""
        if self.kernels.cross_entropy == "triton":
            return self.token_nll(h_tD, labels_T), self.entropy(h_tD.detach()).detach()
        h_TD, weight_VD = self.operands(self.region.enter(h_tD), local(self.weight))
        entropy_T = torch.zeros(len(labels_T), dtype=torch.promote_types(h_TD.dtype, torch.float32), device=h_TD.device)
        shard = self.vocabulary.shard(len(weight_VD))
        nll_T = token_nll(h_TD, weight_VD, labels_T, shard=shard, entropy_T=entropy_T)
        return self.vocabulary.own(nll_T), self.vocabulary.own(entropy_T)

    def entropy(self, h_tD: Tensor) -> Tensor:
        """entropy_o of the next token's distribution of the rank's own tokens, nats, fp32 or better, differentiable."""
        h_TD, weight_VD = self.operands(self.region.enter(h_tD), local(self.weight))
        return self.vocabulary.own(token_entropy(h_TD, weight_VD, shard=self.vocabulary.shard(len(weight_VD))))

    @torch.no_grad()
    def greedy(self, h_tD: Tensor) -> Tensor:
        """The likeliest token after each of the rank's own, int64 [o]; logits are made for a slice of the tokens at a
        time."""
        h_TD = self.region.enter(h_tD)
        largest = [self._logits(rows_CD).max(dim=-1) for rows_CD in h_TD.split(_GREEDY_CHUNK_TOKENS)]
        logits_T, rows_T = (torch.cat(parts) for parts in zip(*largest, strict=True))
        return self.vocabulary.own(self.vocabulary.likeliest(logits_T, rows_T, len(local(self.weight))))

    def _logits(self, h_TD: Tensor) -> Tensor:
        h_TD, weight_VD = self.operands(h_TD, local(self.weight))
        return F.linear(h_TD, weight_VD.to(h_TD.dtype))


def as_they_are(h_TD: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
    """`LMHead.operands` as it is written."""
    return h_TD, weight_VD


class LinearHead(nn.Module):
    """A head of `ModelConfig.heads`: weight [n, D], no bias. Its outputs are fp32, regardless of the compute dtype."""

    def __init__(self, hidden_size: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, hidden_size))
        self.region: Region = ONE_DEVICE

    def forward(self, h_tD: Tensor) -> Tensor:
        """[o, n] for the rank's own tokens."""
        return F.linear(self.region.enter(h_tD).float(), local(self.weight).float())


class Heads(NamedTuple):
    """What the last section can ask of its hidden states: the language-model head, and `linear` ones by name."""

    lm_head: LMHead | None
    linear: Mapping[str, LinearHead]

    @property
    def lm(self) -> LMHead:
        """The language-model head. Raises `NoLMHeadError` for a model without one."""
        if self.lm_head is None:
            raise NoLMHeadError(self.linear)
        return self.lm_head


class NoLMHeadError(GlmforgeError):
    """Next tokens or text were asked of a model that answers with its other `heads` only."""

    def __init__(self, heads: Iterable[str]) -> None:
        super().__init__(
            f"the model has no language-model head (model.lm_head is false; it has {', '.join(heads)}); it cannot "
            "generate or score text"
        )
