"""Sigmoid top-k routing with a correction bias that steers the choice and never the output.

Everything is fp32; the arithmetic is in `glmforge.kernels.router`. The bias (kept level by `optim.balance`, not by
gradients) is added to the scores only to choose experts; the weights of the chosen ones come from the unbiased scores.

With `balance = "sinkhorn"` and in training the choice is made on logits under a bias per row that loads all experts
equally (`glmforge.kernels.sinkhorn`); weights are the sigmoid scores of the chosen ones as ever. Departures from Clark
et al. (2022), who normalise over a whole batch of one router: a row at a time, so that neither the batch size nor the
layout changes what a token is sent to; top k; and sigmoid weights, as Megatron has them for top 1. The correction bias
takes no part there (a constant per expert is what Sinkhorn finds anyway). In evaluation the choice is the usual one.

Source: GLM-4.5 report (arXiv 2508.06471); for loss-free balancing, arXiv 2408.15664; for Sinkhorn, arXiv 2202.01169.

Shapes: L layers, T tokens, B rows, S tokens per row, D hidden_size, E experts, K experts per token.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.kernels.choice import ChoosesKernels
from glmforge.kernels.router import Routes, RoutingRule, route
from glmforge.kernels.sinkhorn import sinkhorn_bias
from glmforge.model.inputs import Rows
from glmforge.model.layers import Matmul, matmul

Balance = Literal["bias", "aux", "sinkhorn"]
"""What levels the experts: a correction bias moved by the load, an auxiliary loss alone, or Sinkhorn's choice."""


class Router(ChoosesKernels, nn.Module):
    """Published name `mlp.gate`: weight [E, D] and the fp32 buffer `e_score_correction_bias` [E].

    `matmul` may be replaced, see `layers.Matmul`.

    To the router "bias" and "aux" are the same: its correction bias steers the choice, whether anybody moves it or not.
    """

    e_score_correction_bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.balance: Balance = "bias"
        self.matmul: Matmul = matmul
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.empty(config.n_routed_experts, dtype=torch.float32))

    @property
    def rule(self) -> RoutingRule:
        c = self.config
        return RoutingRule(c.num_experts_per_tok, c.n_group, c.topk_group, c.norm_topk_prob, c.routed_scaling_factor)

    def forward(self, x_TD: Tensor, rows: Rows | None = None, given_TK: Tensor | None = None) -> Routes:
        """`rows` says where the tokens belong; without it (in generation) the choice is the usual one. `given_TK` are
        experts to take instead of choosing (see `inputs.Routing`): their weights are this router's, with gradients."""
        logits_TE = self.matmul(x_TD.float(), self.weight.float())
        choice_TE = None
        if self.balance == "sinkhorn" and self.training and rows is not None:
            choice_TE = self._level_in_each_row(logits_TE.detach(), rows)
        return route(
            logits_TE,
            self.e_score_correction_bias,
            self.rule,
            choice_TE=choice_TE,
            given_TK=given_TK,
            implementation=self.kernels.router,
        )

    def _level_in_each_row(self, logits_TE: Tensor, rows: Rows) -> Tensor:
        row_BT = rows.one_hot_BT(logits_TE.dtype)
        return logits_TE + row_BT.T @ sinkhorn_bias(logits_TE, row_BT, rows.seq_len, list(rows.groups))


class RowBalance(NamedTuple):
    """Of one layer and every row: `probability_BE`, summed over the row's tokens, of each expert (its share of the
    token's scores), and `count_BE`, how many of the tokens rank it in the top k of the scores WITHOUT the bias."""

    probability_BE: Tensor
    count_BE: Tensor


def row_balance(scores_TE: Tensor, rows: Rows, num_experts_per_tok: int) -> RowBalance:
    """The sums over the tokens on this rank."""
    probability_TE = scores_TE / scores_TE.sum(dim=-1, keepdim=True)
    chosen_TK = scores_TE.detach().topk(num_experts_per_tok, dim=-1, sorted=False).indices
    chosen_TE = torch.zeros_like(scores_TE).scatter_(1, chosen_TK, 1.0)
    row_BT = rows.one_hot_BT(scores_TE.dtype)
    return RowBalance(row_BT @ probability_TE, row_BT @ chosen_TE)


def sequence_balance_loss(layers: Sequence[RowBalance], rows: Rows, num_experts_per_tok: int) -> Tensor:
    """Sequence-level auxiliary loss, summed over layers and rows (fp32 scalar).

    Per row of S tokens: `E / (K S^2) * sum_i(sum_t P_ti * count_i)` with `P = s / sum(s)` and counts of the top-k
    of the scores WITHOUT the correction bias. A perfectly level router gives 1 per row and layer.

    Where ranks share the rows, the counts are summed over them, once for all layers, and the probabilities are left:
    the result is this rank's share, and so is its gradient.
    """
    probability_LBE = torch.stack([layer.probability_BE for layer in layers])
    count_LBE = rows.sum(torch.stack([layer.count_BE for layer in layers]))
    num_experts = probability_LBE.shape[-1]
    return (probability_LBE * count_LBE).sum() * (num_experts / (num_experts_per_tok * rows.seq_len**2))
