"""Dropout whose masks follow from (seed, step, layer, site, token, feature) and from nothing else.

So they are the same on every layout, for every size of micro-batch and when a layer is computed again, and a resumed
run draws those that an unbroken one would have drawn. A token's number is its place in the order of the phase, which
data ranks, context and sequence parallelism all know; a step belongs to one phase.

`Noise` is a step's, `TokenNoise` a micro-batch's, `LayerDropout` what a layer applies to what it adds to the residual
stream. Attention makes its own mask (`glmforge.kernels.attention_dropout`). Source: Srivastava et al., 2014.

Shapes: B rows, S tokens per row, T tokens, D hidden_size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from glmforge.config.regularization import RegularizationConfig
from glmforge.kernels.random import drop_out, drops, fold
from glmforge.kernels.transfer import on_device

_ATTENTION_OUTPUT, _MLP_OUTPUT, _ATTENTION_PROBABILITIES = range(3)
"""Sites of a layer."""


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


@dataclass(frozen=True)
class Noise:
    """Rates, and the stream of a step: `key` is an int64 scalar on the CPU."""

    dropout: float
    attention_dropout: float
    key: Tensor

    @classmethod
    def of_step(cls, regularization: RegularizationConfig, seed: int, step: int) -> "Noise | None":
        """The noise of a training step; None where nothing is dropped."""
        if not regularization.dropout and not regularization.attention_dropout:
            return None
        key = fold(fold(torch.tensor(0), seed), step)
        return cls(regularization.dropout, regularization.attention_dropout, key)

    def of_samples(
        self, sample_indices: Sequence[int], seq_len: int, device: torch.device | str | None = None
    ) -> "TokenNoise":
        """The noise of rows of `seq_len` tokens that are these samples of the phase."""
        places_S = torch.arange(seq_len, device=device)
        rows_B1 = on_device(sample_indices, device)[:, None]
        return TokenNoise(self, (rows_B1 * seq_len + places_S).flatten())


@dataclass(frozen=True, eq=False)
class TokenNoise:
    """The noise of some tokens: `token_T`, int64, are their numbers in the order of the phase."""

    step: Noise
    token_T: Tensor

    def select(self, token_T: Tensor) -> "TokenNoise":
        """Of other tokens."""
        return replace(self, token_T=token_T)

    def of_layer(self, layer: int) -> LayerDropout | None:
        """For what layer `layer` adds to the residual stream; None at rate 0."""
        if not self.step.dropout:
            return None
        attention_T, mlp_T = (self._streams(layer, site) for site in (_ATTENTION_OUTPUT, _MLP_OUTPUT))
        return LayerDropout(attention_T, mlp_T, self.step.dropout)

    def of_attention(self, layer: int, heads: range) -> Tensor:
        """int64 [T, H]: a stream for each token as a query and each of these heads of all that the layer has."""
        streams_T = self._streams(layer, _ATTENTION_PROBABILITIES)
        return fold(streams_T[:, None], torch.arange(heads.start, heads.stop, device=streams_T.device))

    def _streams(self, layer: int, site: int) -> Tensor:
        return fold(fold(fold(self.step.key, layer), site), self.token_T)
