"""The decoder layer (pre-norm attention, then dense or expert MLP) and the multi-token-prediction layer built on it.

A layer is called with all tokens of a micro-batch, or with both halves of it. Halves take turns, so that one computes
while the other's rows travel between the ranks that share the experts:

    attention A | send A | attention B | send B | experts A | send back A | experts B | send back B | shared experts

Waiting for rows comes as late as can be: for A's behind attention B, for B's behind experts A, for what comes back
behind experts B and the shared experts. The backward pass goes the same way in reverse, since autograd takes what was
recorded last first, and what waits for an exchange forward starts that of the gradients.

Shapes: T tokens, D hidden_size, E experts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.model.attention import Attend, Attention
from glmforge.model.dropout import AdapterDropout, LayerDropout
from glmforge.model.inputs import Rows
from glmforge.model.layers import Linear, RMSNorm, SwiGLU
from glmforge.model.moe import MoE
from glmforge.model.rope import Rope


class LayerTokens(NamedTuple):
    """What a layer knows of its tokens: `rows` are those of the tokens that the router sees; `dropout` and
    `adapter_dropout` are None where nothing is dropped; `given_TK` are experts for the router to take instead of
    choosing; `adapters` says whether the layer's adapters count."""

    rope: Rope
    attend: Attend
    rows: Rows | None = None
    dropout: LayerDropout | None = None
    adapter_dropout: AdapterDropout | None = None
    given_TK: Tensor | None = None
    adapters: bool = True


class LayerOutput(NamedTuple):
    """`x_TD`, and of a MoE layer what its router did: tokens that chose each expert `counts_E`, those dropped
    `dropped_E`, scores `scores_TE`, experts `experts_TK`; None for a dense layer."""

    x_TD: Tensor
    counts_E: Tensor | None = None
    dropped_E: Tensor | None = None
    scores_TE: Tensor | None = None
    experts_TK: Tensor | None = None


class DecoderLayer(nn.Module):
    """`x += attention(norm(x)); x += mlp(norm(x))`; dense MLP in the first `first_k_dense_replace` layers."""

    adapter_dropout: AdapterDropout | None = None
    adapters_on: bool = True
    """Both are of the tokens at work, during a call, a recomputed one too: maps are handed nothing but numbers."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp: MoE | SwiGLU = (
            SwiGLU(config.hidden_size, config.intermediate_size)
            if layer < config.first_k_dense_replace
            else MoE(config)
        )

    def forward(self, *halves_TD: Tensor, tokens: Sequence[LayerTokens]) -> tuple[LayerOutput, ...]:
        """`halves_TD` are the states of all tokens, or of two halves; `tokens` tells of each what it is."""
        self.adapter_dropout, self.adapters_on = tokens[0].adapter_dropout, tokens[0].adapters
        try:
            return self._run(halves_TD, tokens)
        finally:
            self.adapter_dropout, self.adapters_on = None, True

    def _run(self, halves_TD: Sequence[Tensor], tokens: Sequence[LayerTokens]) -> tuple[LayerOutput, ...]:
        if isinstance(self.mlp, SwiGLU):
            return tuple(self._dense(x_TD, of, self.mlp) for x_TD, of in zip(halves_TD, tokens, strict=True))
        residuals_TD, routed = [], []
        for x_TD, of in zip(halves_TD, tokens, strict=True):
            x_TD, normed_TD = self._attended(x_TD, of)
            residuals_TD.append(x_TD)
            routed.append(self.mlp.send(normed_TD, of.rows, of.given_TK))
        outputs = self.mlp.receive(*routed)
        return tuple(
            LayerOutput(_added(x_TD, y_TD, of), *router)
            for x_TD, (y_TD, *router), of in zip(residuals_TD, outputs, tokens, strict=True)
        )

    def _dense(self, x_TD: Tensor, of: LayerTokens, mlp: SwiGLU) -> LayerOutput:
        x_TD, normed_TD = self._attended(x_TD, of)
        return LayerOutput(_added(x_TD, mlp(normed_TD), of))

    def _attended(self, x_TD: Tensor, of: LayerTokens) -> tuple[Tensor, Tensor]:
        o_THP = of.attend(self.self_attn, *self.before_attention(x_TD, of.rope))
        return self.after_attention(x_TD, o_THP, of.dropout)

    def before_attention(self, x_TD: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        return self.self_attn.heads(self.input_layernorm(x_TD), rope)

    def after_attention(self, x_TD: Tensor, o_THP: Tensor, dropout: LayerDropout | None) -> tuple[Tensor, Tensor]:
        """The residual stream with attention's part added, and what the MLP reads of it."""
        y_TD = self.self_attn.output(o_THP)
        y_TD = y_TD if dropout is None else dropout.drop_attention(y_TD)
        return self.post_attention_layernorm.after_adding(x_TD, y_TD)


class SharedHead(nn.Module):
    """The norm before the logits of a prediction depth; the projection itself is the model's own `lm_head`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.norm(x_TD)


class MTPLayer(DecoderLayer):
    """One depth of multi-token prediction: from h_t and the embedding of x_(t+1), predict x_(t+2).

    `z = eh_proj([enorm(embedding), hnorm(h)])` (embedding first), a full MoE decoder layer, `shared_head.norm`. The
    h of the first depth is taken after the trunk's final norm; a further depth takes the previous one's normed
    output. Published as layer `num_hidden_layers + depth - 1`.

    It is called with two tensors of all tokens, or of each half: `h_TD`, what the shallower depth gave for each
    position, and `next_TD`, which embeds the token it predicted.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = Linear(2 * config.hidden_size, config.hidden_size)
        self.shared_head = SharedHead(config)

    def _run(self, halves_TD: Sequence[Tensor], tokens: Sequence[LayerTokens]) -> tuple[LayerOutput, ...]:
        read_TD = [self.combine(h_TD, next_TD) for h_TD, next_TD in zip(halves_TD[::2], halves_TD[1::2], strict=True)]
        outputs = super()._run(read_TD, tokens)
        return tuple(output._replace(x_TD=self.shared_head(output.x_TD)) for output in outputs)

    def combine(self, h_TD: Tensor, next_TD: Tensor) -> Tensor:
        """What the depth's decoder layer reads."""
        return self.eh_proj(torch.cat((self.enorm(next_TD), self.hnorm(h_TD)), dim=-1))


def _added(x_TD: Tensor, y_TD: Tensor, of: LayerTokens) -> Tensor:
    return x_TD + (y_TD if of.dropout is None else of.dropout.drop_mlp(y_TD))
