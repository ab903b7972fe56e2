"""Dropout and noise on embeddings that follow from (seed, step, layer, site, token, feature) and from nothing else.

So masks are the same on every layout, for every size of micro-batch and when a layer is computed again, and a resumed
run draws those that an unbroken one would have drawn. A token's number is its place in the order of the phase, which
data ranks, context and sequence parallelism all know; a step belongs to one phase.

`Noise` is a step's, `TokenNoise` a micro-batch's, `LayerDropout` what a layer applies to what it adds to the residual
stream. Attention makes its own mask (`glmforge.kernels.attention_dropout`). Source: Srivastava et al., 2014.

NEFTune (Jain et al., 2023, arXiv 2310.05914) adds to each embedding uniform noise within alpha / sqrt(L D), where the
paper's L is the length of a padded batch's sequence; here it is that of the token's own document. What MTP layers read
of the tokens to come has no noise.

Shapes: B rows, S tokens per row, T tokens, D hidden_size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from glmforge.config.regularization import RegularizationConfig
from glmforge.kernels.documents import Documents
from glmforge.kernels.random import drop_out, drops, drops_from, fold, uniform_bits
from glmforge.kernels.transfer import on_device

_ATTENTION_OUTPUT, _MLP_OUTPUT, _ATTENTION_PROBABILITIES, _EMBEDDING, _ADAPTERS = range(5)
"""Sites of a layer; embeddings have theirs in layer 0."""


class LayerDropout(NamedTuple):
    """Of one layer: streams of random bits per token, `attention_T` and `mlp_T` (int64), and the rate."""

    attention_T: Tensor
    mlp_T: Tensor
    rate: float

    def drop_attention(self, x_TD: Tensor) -> Tensor:
        """What attention adds to the residual stream, some of it dropped."""
        return drop_out(x_TD, drops(self.attention_T, x_TD.shape[-1], self.rate), self.rate)

    def drop_mlp(self, x_TD: Tensor) -> Tensor:
        """What the MLP adds to the residual stream, some of it dropped."""
        return drop_out(x_TD, drops(self.mlp_T, x_TD.shape[-1], self.rate), self.rate)


class AdapterDropout(NamedTuple):
    """Of one layer: streams of random bits of the tokens that its maps read, `tokens_T` (int64), and the rate."""

    tokens_T: Tensor
    rate: float

    def drop(self, x_TJ: Tensor, site: int, first: int) -> Tensor:
        """What the adapter number `site` of the layer reads, some of it dropped; column 0 is input number `first`."""
        dropped_TJ = drops_from(fold(self.tokens_T, site), first, x_TJ.shape[-1], self.rate)
        return drop_out(x_TJ, dropped_TJ, self.rate)


@dataclass(frozen=True)
class Noise:
    """Rates, and the stream of a step: `key` is an int64 scalar on the CPU."""

    dropout: float
    attention_dropout: float
    neftune_alpha: float
    adapters: float
    key: Tensor

    @classmethod
    def of_step(
        cls, regularization: RegularizationConfig, seed: int, step: int, adapters: float = 0.0
    ) -> "Noise | None":
        """The noise of a training step, `adapters` being their rate, or None."""
        rates = regularization.dropout, regularization.attention_dropout, regularization.neftune_alpha, adapters
        return cls(*rates, fold(fold(torch.tensor(0), seed), step)) if any(rates) else None

    def of_samples(
        self, sample_indices: Sequence[int], seq_len: int, documents: Documents | None = None
    ) -> "TokenNoise":
        """The noise of rows of `seq_len` tokens that are these samples of the phase (`documents` None: each row is
        one document)."""
        documents = documents or Documents.from_lengths([seq_len] * len(sample_indices))
        device = documents.positions_T.device
        rows_B1 = on_device(sample_indices, device)[:, None]
        token_T = (rows_B1 * seq_len + torch.arange(seq_len, device=device)).flatten()
        return TokenNoise(self, token_T, documents.cu_seqlens.diff()[documents.ids_T()])


@dataclass(frozen=True, eq=False)
class TokenNoise:
    """The noise of some tokens: `token_T`, int64, are their numbers in the order of the phase, and `length_T` how long
    the documents are that they belong to."""

    step: Noise
    token_T: Tensor
    length_T: Tensor

    def select(self, take: Callable[[Tensor], Tensor]) -> "TokenNoise":
        """Of the tokens that `take` takes of what all have."""
        return replace(self, token_T=take(self.token_T), length_T=take(self.length_T))

    def add_to_embeddings(self, x_TD: Tensor) -> Tensor:
        """Embeddings of the tokens with noise (NEFTune)."""
        if not self.step.neftune_alpha:
            return x_TD
        width = x_TD.shape[-1]
        bits_TD = uniform_bits(self._streams(0, _EMBEDDING), 0, width)
        bound_T1 = self.step.neftune_alpha / math.sqrt(width) * self.length_T.rsqrt()[:, None]
        return x_TD + (((bits_TD + 0.5) / 2**15 - 1) * bound_T1).to(x_TD.dtype)

    def of_layer(self, layer: int) -> LayerDropout | None:
        """For what layer `layer` adds to the residual stream; None at rate 0."""
        if not self.step.dropout:
            return None
        attention_T, mlp_T = (self._streams(layer, site) for site in (_ATTENTION_OUTPUT, _MLP_OUTPUT))
        return LayerDropout(attention_T, mlp_T, self.step.dropout)

    def of_adapters(self, layer: int) -> AdapterDropout | None:
        """For what adapters of layer `layer` read of these tokens; None at rate 0."""
        rate = self.step.adapters
        return AdapterDropout(self._streams(layer, _ADAPTERS), rate) if rate else None

    def of_attention(self, layer: int, heads: range) -> Tensor:
        """int64 [T, H]: a stream for each token as a query and each of these heads of all that the layer has."""
        streams_T = self._streams(layer, _ATTENTION_PROBABILITIES)
        return fold(streams_T[:, None], torch.arange(heads.start, heads.stop, device=streams_T.device))

    def _streams(self, layer: int, site: int) -> Tensor:
        return fold(fold(fold(self.step.key, layer), site), self.token_T)
