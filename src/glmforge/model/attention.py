"""Grouped-query self-attention with q/k/v bias, optional per-head QK-norm and partial RoPE.

The module owns projections only. How queries meet keys (packed documents in training, a KV cache in generation,
a sequence split over ranks) is the caller's `attend` function, so the same weights serve every stage.

Shapes: T tokens, D hidden_size, H query heads, G key/value heads, P head_dim.
"""

from typing import Protocol

from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.kernels.choice import ChoosesKernels
from glmforge.kernels.qk_rope import qk_rope
from glmforge.model.layers import Linear, RMSNorm
from glmforge.model.placement import ONE_DEVICE, Region
from glmforge.model.rope import Rope


class Attend(Protocol):
    """Causal attention of one layer; the scale is `P ** -0.5`.

    It is handed the module for what differs between layers: the layer's number, whether it trains.
    """

    def __call__(self, module: "Attention", q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, /) -> Tensor: ...


class Attention(ChoosesKernels, nn.Module):
    """Projections, norms and rotation of one layer; H * P may differ from D (96 x 128 for D = 5120)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim, self.rms_norm_eps = config.head_dim, config.rms_norm_eps
        q_features = config.num_attention_heads * config.head_dim
        kv_features = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, q_features, bias=config.attention_bias)
        self.k_proj = Linear(config.hidden_size, kv_features, bias=config.attention_bias)
        self.v_proj = Linear(config.hidden_size, kv_features, bias=config.attention_bias)
        self.o_proj = Linear(q_features, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.use_qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.use_qk_norm else None
        self.region: Region = ONE_DEVICE

    def forward(self, x_TD: Tensor, rope: Rope, attend: Attend) -> Tensor:
        return self.output(attend(self, *self.heads(x_TD, rope)))

    def heads(self, x_TD: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """q_THP, k_TGP and v_TGP, as `attend` takes them."""
        x_TD = self.region.enter(x_TD)
        q_THP = self.q_proj(x_TD).unflatten(-1, (-1, self.head_dim))
        k_TGP = self.k_proj(x_TD).unflatten(-1, (-1, self.head_dim))
        v_TGP = self.v_proj(x_TD).unflatten(-1, (-1, self.head_dim))
        q_THP, k_TGP = qk_rope(
            q_THP,
            k_TGP,
            rope.cos_T1R,
            rope.sin_T1R,
            None if self.q_norm is None else self.q_norm.weight,
            None if self.k_norm is None else self.k_norm.weight,
            self.rms_norm_eps,
            implementation=self.kernels.qk_rope,
        )
        return q_THP, k_TGP, v_TGP

    def output(self, o_THP: Tensor) -> Tensor:
        """What attention adds to the residual stream, from what `attend` gave."""
        return self.region.leave(self.o_proj(o_THP.flatten(-2)))
