"""Sigmoid top-k routing with a correction bias that steers the choice and never the output.

Everything is fp32. The bias (kept level by `optim.balance`, not by gradients) is added to the scores only to choose
experts; the weights of the chosen ones come from the unbiased scores. With `n_group > 1` the choice is first limited
to the `topk_group` groups with the best top-2 sum.

Source: GLM-4.5 report (arXiv 2508.06471) and, for loss-free balancing, arXiv 2408.15664.

Shapes: T tokens, B rows, S tokens per row, D hidden_size, E experts, K experts per token, J groups.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glmforge.config.model import ModelConfig


class Routes(NamedTuple):
    """Where the tokens go. `weights_TK` fp32, `experts_TK` int64, `scores_TE` fp32 unbiased sigmoid scores."""

    weights_TK: Tensor
    experts_TK: Tensor
    scores_TE: Tensor


class Router(nn.Module):
    """Published name `mlp.gate`: weight [E, D] and the fp32 buffer `e_score_correction_bias` [E]."""

    e_score_correction_bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.empty(config.n_routed_experts, dtype=torch.float32))

    def forward(self, x_TD: Tensor) -> Routes:
        config = self.config
        scores_TE = F.linear(x_TD.float(), self.weight.float()).sigmoid()
        choice_TE = self._limit_to_groups(scores_TE.detach() + self.e_score_correction_bias)
        experts_TK = choice_TE.topk(config.num_experts_per_tok, dim=-1, sorted=False).indices
        weights_TK = scores_TE.gather(1, experts_TK)
        if config.norm_topk_prob:
            weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + 1e-20)
        return Routes(weights_TK * config.routed_scaling_factor, experts_TK, scores_TE)

    def _limit_to_groups(self, choice_TE: Tensor) -> Tensor:
        num_groups, num_kept = self.config.n_group, self.config.topk_group
        if num_groups == num_kept:
            return choice_TE
        choice_TJE = choice_TE.unflatten(-1, (num_groups, -1))
        group_scores_TJ = choice_TJE.topk(2, dim=-1).values.sum(dim=-1)
        kept = group_scores_TJ.topk(num_kept, dim=-1, sorted=False).indices
        dropped_TJ = torch.ones_like(group_scores_TJ, dtype=torch.bool).scatter_(1, kept, False)
        return choice_TJE.masked_fill(dropped_TJ[..., None], float("-inf")).flatten(-2)


def sequence_balance_loss(scores_TE: Tensor, num_rows: int, num_experts_per_tok: int) -> Tensor:
    """Sequence-level auxiliary loss of one layer, summed over the rows of the batch (fp32 scalar).

    Per row of S tokens: `E / (K S^2) * sum_i(sum_t P_ti * count_i)` with `P = s / sum(s)` and counts of the top-k
    of the scores WITHOUT the correction bias. A perfectly level router gives 1 per row.
    """
    scores_BSE = scores_TE.unflatten(0, (num_rows, -1))
    _, seq_len, num_experts = scores_BSE.shape
    probability_BE = (scores_BSE / scores_BSE.sum(dim=-1, keepdim=True)).sum(dim=1)
    chosen_BSK = scores_BSE.detach().topk(num_experts_per_tok, dim=-1, sorted=False).indices
    ones = torch.ones_like(chosen_BSK.flatten(1), dtype=torch.float32)
    count_BE = torch.zeros_like(probability_BE).scatter_add_(1, chosen_BSK.flatten(1), ones)
    return (probability_BE * count_BE).sum() * (num_experts / (num_experts_per_tok * seq_len**2))
