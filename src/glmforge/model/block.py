"""The decoder layer (pre-norm attention, then dense or expert MLP) and the multi-token-prediction layer built on it.

Shapes: T tokens, D hidden_size, E experts.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.model.attention import Attend, Attention
from glmforge.model.dropout import LayerDropout
from glmforge.model.inputs import Rows
from glmforge.model.layers import Linear, RMSNorm, SwiGLU
from glmforge.model.moe import MoE
from glmforge.model.rope import Rope


class LayerOutput(NamedTuple):
    """`x_TD`, and of a MoE layer what its router did: tokens that chose each expert `counts_E`, those dropped
    `dropped_E`, scores `scores_TE`; None for a dense layer."""

    x_TD: Tensor
    counts_E: Tensor | None = None
    dropped_E: Tensor | None = None
    scores_TE: Tensor | None = None


class DecoderLayer(nn.Module):
    """`x += attention(norm(x)); x += mlp(norm(x))`; dense MLP in the first `first_k_dense_replace` layers."""

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

    def forward(
        self,
        x_TD: Tensor,
        rope: Rope,
        attend: Attend,
        rows: Rows | None = None,
        dropout: LayerDropout | None = None,
    ) -> LayerOutput:
        """`rows` are those of the tokens that the router sees; `dropout` is None where nothing is dropped."""
        o_THP = attend(self.self_attn, *self.before_attention(x_TD, rope))
        x_TD, normed_TD = self.after_attention(x_TD, o_THP, dropout)
        if isinstance(self.mlp, SwiGLU):
            y_TD, router = self.mlp(normed_TD), ()
        else:
            y_TD, *router = self.mlp(normed_TD, rows)
        return LayerOutput(x_TD + (y_TD if dropout is None else dropout.drop_mlp(y_TD)), *router)

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
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = Linear(2 * config.hidden_size, config.hidden_size)
        self.shared_head = SharedHead(config)

    def forward(  # type: ignore[override]
        self,
        h_TD: Tensor,
        rope: Rope,
        attend: Attend,
        next_TD: Tensor,
        rows: Rows | None = None,
        dropout: LayerDropout | None = None,
    ) -> LayerOutput:
        """`h_TD` is what the shallower depth gave for each position, `next_TD` embeds the token it predicted."""
        output = super().forward(self.combine(h_TD, next_TD), rope, attend, rows, dropout)
        return output._replace(x_TD=self.shared_head(output.x_TD))

    def combine(self, h_TD: Tensor, next_TD: Tensor) -> Tensor:
        """What the depth's decoder layer reads."""
        return self.eh_proj(torch.cat((self.enorm(next_TD), self.hnorm(h_TD)), dim=-1))
