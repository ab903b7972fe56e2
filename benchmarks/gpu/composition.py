"""The same architecture as a good engineer writes it in an afternoon from PyTorch's own operators: what to beat.

In the manner of today's plain training code: grouped matmuls over tokens sorted by expert, scaled-dot-product
attention, layers compiled one by one, logits and loss compiled together, fp32 weights cast to bf16 where they are used.
Rows are whole documents. Parameters have the published names, so the weights of the other models can be loaded.

Shapes: B rows, S tokens per row, T tokens, D hidden_size, H heads, P head_dim, E experts, K experts per token, N = T K.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glmforge.config.model import ModelConfig


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.normalized_shape, self.weight.float(), self.eps).to(x.dtype)


class SwiGLU(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(hidden, width, bias=False), Linear(hidden, width, bias=False)
        self.down_proj = Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        scores_TE = F.linear(x_TD.float(), self.weight).sigmoid()
        experts_TK = (
            (scores_TE + self.e_score_correction_bias).topk(self.config.num_experts_per_tok, sorted=False).indices
        )
        weights_TK = scores_TE.gather(1, experts_TK)
        if self.config.norm_topk_prob:
            weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        return weights_TK * self.config.routed_scaling_factor, experts_TK


class Experts(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_experts, width = config.n_routed_experts, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * width, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, config.hidden_size, width))

    def forward(self, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor) -> Tensor:
        num_chosen = experts_TK.shape[1]
        experts_N = experts_TK.flatten()
        order_N = experts_N.argsort(stable=True)
        offsets = torch.zeros(self.num_experts, dtype=torch.int64, device=x_TD.device)
        offsets = offsets.scatter_add(0, experts_N, torch.ones_like(experts_N)).cumsum(0).to(torch.int32)
        tokens_N = order_N // num_chosen
        gate_up = F.grouped_mm(x_TD[tokens_N], self.gate_up_proj.to(x_TD.dtype).transpose(1, 2), offs=offsets)
        gate, up = gate_up.chunk(2, dim=-1)
        y_ND = F.grouped_mm(F.silu(gate) * up, self.down_proj.to(x_TD.dtype).transpose(1, 2), offs=offsets)
        weighted_ND = y_ND * weights_TK.flatten()[order_N].unsqueeze(1).to(y_ND.dtype)
        return torch.zeros_like(x_TD).index_add(0, tokens_N, weighted_ND)


class MoE(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate, self.experts = Gate(config), Experts(config)
        self.shared_experts = SwiGLU(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        x_TD = x.flatten(0, 1)
        return (self.experts(x_TD, *self.gate(x_TD)) + self.shared_experts(x_TD)).view_as(x)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, q, bias=config.attention_bias)
        self.k_proj = Linear(config.hidden_size, kv, bias=config.attention_bias)
        self.v_proj = Linear(config.hidden_size, kv, bias=config.attention_bias)
        self.o_proj = Linear(q, config.hidden_size, bias=False)
        if config.use_qk_norm:
            self.q_norm, self.k_norm = (RMSNorm(config.head_dim, config.rms_norm_eps) for _ in range(2))
        self.use_qk_norm = config.use_qk_norm

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (-1, self.head_dim)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        if self.use_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (rotate(y, cos, sin).transpose(1, 2) for y in (q, k))
        o = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.o_proj(o.transpose(1, 2).flatten(2))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turning, passing = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turning.chunk(2, dim=-1)
    return torch.cat((turning * cos + torch.cat((-second, first), dim=-1) * sin, passing), dim=-1)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, *, dense: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2)
        )
        self.self_attn = Attention(config)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size) if dense else MoE(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Composition(nn.Module):
    """Without MTP layers. `recompute` does each layer's forward again in its backward."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.dtype, self.recompute = config, dtype, False
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(
            Layer(config, dense=layer < config.first_k_dense_replace) for layer in range(config.num_hidden_layers)
        )
        self.model.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.loss_of_hidden = loss_of_hidden

    def compile_layers(self) -> None:
        for layer in self.model.layers:
            layer.compile()
        self.loss_of_hidden = torch.compile(loss_of_hidden)

    def loss(self, ids_BS: Tensor, labels_BS: Tensor) -> Tensor:
        """Mean cross-entropy over the labels that are not negative."""
        cos, sin = self.rotation(ids_BS.shape[1], ids_BS.device)
        x = self.model.embed_tokens(ids_BS).to(self.dtype)
        for layer in self.model.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recompute else layer(x, cos, sin)
        return self.loss_of_hidden(self.model.norm(x), self.lm_head.weight, labels_BS)

    def rotation(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        dim = self.config.rotary_dim
        frequencies = self.config.rope_theta ** -(torch.arange(0, dim, 2, device=device).float() / dim)
        angles = (torch.arange(length, device=device).float()[:, None] * frequencies).repeat(1, 2)[:, None]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def loss_of_hidden(x: Tensor, weight: Tensor, labels_BS: Tensor) -> Tensor:
    logits = F.linear(x, weight.to(x.dtype)).flatten(0, 1).float()
    return F.cross_entropy(logits, labels_BS.flatten(), ignore_index=-100)
