"""The mixture-of-experts layer: route, run the chosen experts, add the shared one.

`y = sum_k w_k E_k(x) + shared(x)`; the shared expert is neither gated nor scaled. The routed experts' weights are
packed over experts, gate rows before up rows, as transformers keeps them in memory.

Shapes: T tokens, D hidden_size, E experts, K experts per token, N = T * K routed rows, I moe_intermediate_size.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.kernels.choice import ChoosesKernels
from glmforge.kernels.dispatch import limit_to_capacity
from glmforge.kernels.experts import expert_linear
from glmforge.kernels.router import Routes
from glmforge.kernels.swiglu import swiglu
from glmforge.model.dispatch import Dispatcher, LocalDispatcher, expert_counts
from glmforge.model.inputs import Rows
from glmforge.model.layers import Matmul, SwiGLU
from glmforge.model.placement import ONE_DEVICE, Region, local
from glmforge.model.router import Router


class Experts(ChoosesKernels, nn.Module):
    """Packed SwiGLU experts: `gate_up_proj` [E, 2I, D] (gate rows first) and `down_proj` [E, D, I].

    `dispatcher` brings tokens to the experts; `capacity_factor` limits each expert to that many times the mean load of
    the tokens routed at once (None: no limit). The matmuls may be replaced, see `layers.Matmul`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_experts, width = config.n_routed_experts, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * width, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, config.hidden_size, width))
        self.gate_up_matmul: Matmul = self.matmul
        self.down_matmul: Matmul = self.matmul
        self.dispatcher: Dispatcher = LocalDispatcher()
        self.capacity_factor: float | None = None

    def forward(
        self, x_TD: Tensor, routes: Routes, overlap: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weighted sum of each token's experts [T, D], what `overlap(x_TD)` gives, and the rows of each expert [E].

        `overlap` is called while the tokens are on their way to the experts.
        """
        experts_TK = self._within_capacity(routes)
        may_drop = self.capacity_factor is not None
        # In the fused SwiGLU a weight costs nothing; the plain one would read and write its rows once more.
        applies_weights = self.dispatcher.needs_weights or self.kernels.swiglu == "triton"
        rows = self.dispatcher.dispatch(
            x_TD,
            experts_TK,
            self.num_experts,
            may_drop=may_drop,
            weights_TK=routes.weights_TK if applies_weights else None,
            implementation=self.kernels.permute,
        )
        overlapped_TD = overlap(x_TD)
        y_ND = self.swiglu(*rows.arrive())
        y_TD = self.dispatcher.combine(y_ND, None if rows.weighted else routes.weights_TK, rows)
        return y_TD, overlapped_TD, expert_counts(experts_TK, self.num_experts)

    def matmul(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        """`layers.Matmul` of the packed matrices, by the implementation that the module is to use."""
        assert counts_E is not None, "every row belongs to an expert"
        assert bias is None, "experts have no bias"
        return expert_linear(x, weight, counts_E, implementation=self.kernels.experts)

    def swiglu(self, x_ND: Tensor, counts_e: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """`down(silu(gate(x)) * up(x))`, each row through its own expert on this device, times its weight if given."""
        gate_up_N2I = self.gate_up_matmul(x_ND, local(self.gate_up_proj), counts_E=counts_e)
        product_NI = swiglu(gate_up_N2I, weights_N, implementation=self.kernels.swiglu)
        return self.down_matmul(product_NI, local(self.down_proj), counts_E=counts_e)

    def _within_capacity(self, routes: Routes) -> Tensor:
        if self.capacity_factor is None:
            return routes.experts_TK
        capacity = math.ceil(self.capacity_factor * routes.experts_TK.numel() / self.num_experts)
        return limit_to_capacity(routes.experts_TK, routes.weights_TK, self.num_experts, capacity)


class MoEOutput(NamedTuple):
    """`y_TD`, the tokens that chose each expert `counts_E`, the ones among them that were dropped for want of capacity
    `dropped_E` (both int64), and the router's scores `scores_TE`."""

    y_TD: Tensor
    counts_E: Tensor
    dropped_E: Tensor
    scores_TE: Tensor


class MoE(nn.Module):
    """Router (published name `gate`), routed experts, and `n_shared_experts` shared ones as one wide SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared_experts = SwiGLU(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)
        self.region: Region = ONE_DEVICE

    def forward(self, x_TD: Tensor, rows: Rows | None = None) -> MoEOutput:
        x_TD = self.region.enter(x_TD)
        routes = self.gate(x_TD, rows)
        y_TD, shared_TD, kept_E = self.experts(x_TD, routes, self.shared_experts)
        counts_E = expert_counts(routes.experts_TK, self.experts.num_experts)
        return MoEOutput(self.region.leave(y_TD + shared_TD), counts_E, counts_E - kept_E, routes.scores_TE)
