"""The mixture-of-experts layer: route, run the chosen experts, add the shared one.

`y = sum_k w_k E_k(x) + shared(x)`; the shared expert is neither gated nor scaled. The routed experts' weights are
packed over experts, gate rows before up rows, as transformers keeps them in memory.

Sending tokens and receiving their results are two calls, so that a layer can compute between them what belongs to the
other half of a micro-batch (`block.DecoderLayer`).

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
from glmforge.model.dispatch import Choices, Dispatcher, ExpertRows, LocalDispatcher, expert_counts
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

    def send(self, x_TD: Tensor, routes: Routes) -> "SentTokens":
        """Start the tokens on their way to the experts. Needs no weights of this module."""
        kept_TK = self._within_capacity(routes)
        # In the fused SwiGLU a weight costs nothing; the plain one would read and write its rows once more.
        applies_weights = self.dispatcher.needs_weights or self.kernels.swiglu == "triton"
        weights_TK = routes.weights_TK if applies_weights else None
        choices = Choices(kept_TK, self.num_experts, self.capacity_factor is not None, weights_TK)
        rows = self.dispatcher.dispatch(x_TD, choices, implementation=self.kernels.permute)
        return SentTokens(rows, None if rows.weighted else routes.weights_TK, kept_TK)

    def forward(self, *halves: "SentTokens", overlap: Callable[[], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
        """Weighted sum of each token's experts [T, D], of all tokens or of two halves, and what `overlap` gives.

        `overlap` is called while rows are on their way: to the experts, or, of two halves, back, since one half's
        experts run while the other's rows are sent.
        """
        overlapped = overlap() if len(halves) == 1 else None
        on_the_way_back = []
        for rows, weights_TK, _ in halves:
            y_ND = self.swiglu(*rows.arrive(*rows.on_the_way))
            on_the_way_back.append(self.dispatcher.send_back(y_ND, weights_TK, rows))
        if overlapped is None:
            overlapped = overlap()
        return [finish() for finish in on_the_way_back], overlapped

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


class SentTokens(NamedTuple):
    """Tokens on their way to the experts: their `rows`, the weights left to apply when they are back, and `kept_TK`,
    each token's experts, `num_experts` for a choice that is dropped."""

    rows: ExpertRows
    weights_TK: Tensor | None
    kept_TK: Tensor


class MoEOutput(NamedTuple):
    """`y_TD`, the tokens that chose each expert `counts_E`, the ones among them that were dropped for lack of capacity
    `dropped_E` (both int64), the router's scores `scores_TE`, and the experts that it took `experts_TK`."""

    y_TD: Tensor
    counts_E: Tensor
    dropped_E: Tensor
    scores_TE: Tensor
    experts_TK: Tensor


class RoutedTokens(NamedTuple):
    """Tokens that a MoE block has routed and sent; `x_TD` are those that its shared experts read."""

    x_TD: Tensor
    routes: Routes
    sent: SentTokens


class MoE(nn.Module):
    """Router (published name `gate`), routed experts, and `n_shared_experts` shared ones as one wide SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared_experts = SwiGLU(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)
        self.region: Region = ONE_DEVICE

    def forward(self, x_TD: Tensor, rows: Rows | None = None) -> MoEOutput:
        (output,) = self.receive(self.send(x_TD, rows))
        return output

    def send(self, x_TD: Tensor, rows: Rows | None = None, given_TK: Tensor | None = None) -> RoutedTokens:
        """Route the tokens and start them on their way; `rows` are those that they belong to, `given_TK` as in
        `Router.forward`."""
        x_TD = self.region.enter(x_TD)
        routes = self.gate(x_TD, rows, given_TK)
        return RoutedTokens(x_TD, routes, self.experts.send(x_TD, routes))

    def receive(self, *halves: RoutedTokens) -> tuple[MoEOutput, ...]:
        """What the experts make of the tokens, all of them or two halves, with what the shared ones add."""

        def shared() -> list[Tensor]:
            return [self.shared_experts(half.x_TD) for half in halves]

        routed = self.experts(*(half.sent for half in halves), overlap=shared)
        return tuple(self._output(half, *y_TD) for half, *y_TD in zip(halves, *routed, strict=True))

    def _output(self, half: RoutedTokens, routed_TD: Tensor, shared_TD: Tensor) -> MoEOutput:
        num_experts = self.experts.num_experts
        kept_E = expert_counts(half.sent.kept_TK, num_experts)
        counts_E = expert_counts(half.routes.experts_TK, num_experts)
        y_TD = self.region.leave(routed_TD + shared_TD)
        return MoEOutput(y_TD, counts_E, counts_E - kept_E, half.routes.scores_TE, half.routes.experts_TK)
