"""The mixture-of-experts layer: route, run the chosen experts, add the shared one.

`y = sum_k w_k E_k(x) + shared(x)`; the shared expert is neither gated nor scaled. The routed experts' weights are
packed over experts, gate rows before up rows, as transformers keeps them in memory.

Shapes: T tokens, D hidden_size, E experts, K experts per token, N = T * K routed rows, I moe_intermediate_size.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.kernels.dispatch import combine, permute, sort_by_expert
from glmforge.kernels.experts import expert_mlp
from glmforge.model.layers import SwiGLU
from glmforge.model.router import Router, Routes


class Experts(nn.Module):
    """Packed SwiGLU experts: `gate_up_proj` [E, 2I, D] (gate rows first) and `down_proj` [E, D, I]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        num_experts, width = config.n_routed_experts, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(num_experts, 2 * width, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(num_experts, config.hidden_size, width))

    def forward(self, x_TD: Tensor, routes: Routes) -> tuple[Tensor, Tensor]:
        """Weighted sum of each token's experts [T, D] and the tokens every expert got [E] (int64)."""
        routing = sort_by_expert(routes.experts_TK, self.gate_up_proj.shape[0])
        y_ND = expert_mlp(permute(x_TD, routing), routing.counts_E, self.gate_up_proj, self.down_proj)
        return combine(y_ND, routes.weights_TK, routing), routing.counts_E


class MoEOutput(NamedTuple):
    """`y_TD`, the tokens routed to each expert `counts_E` (int64) and the routes they came from."""

    y_TD: Tensor
    counts_E: Tensor
    routes: Routes


class MoE(nn.Module):
    """Router (published name `gate`), routed experts, and `n_shared_experts` shared ones as one wide SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared_experts = (
            SwiGLU(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)
            if config.n_shared_experts
            else None
        )

    def forward(self, x_TD: Tensor) -> MoEOutput:
        routes = self.gate(x_TD)
        y_TD, counts_E = self.experts(x_TD, routes)
        if self.shared_experts is not None:
            y_TD = y_TD + self.shared_experts(x_TD)
        return MoEOutput(y_TD, counts_E, routes)
