"""A critic's loss: values near the returns, and not far from what they were before the rollout's first update.

max((v - R)^2, (clip(v, old - c, old + c) - R)^2) / 2 per token (Schulman et al., 2017, arXiv 1707.06347, as in PPO's
published code). Values are a linear head of the name `value`, at the token before the one that they are of.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from glmforge.backend.objective import MetricSum, Objective
from glmforge.data.stream.batch import Batch
from glmforge.kernels.cross_entropy import IGNORE_INDEX
from glmforge.model.head import Heads
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.observe.metric_table import Metric
from glmforge.parallel.inputs import TokenShare

OLD_VALUE, RETURN = "old_value", "return"
"""In `Batch.per_token`, float32."""


class ValueObjective(Objective):
    """See above; `clip` is c, None for no bound."""

    terms, weights = ("value",), (1.0,)
    replays_experts = False
    metrics = (MetricSum("value_tokens"), MetricSum("value_sum"), MetricSum("return_sum"))
    metric_rows = (Metric("value", "reward^2", "loss", "critic: half the squared error of its values"),)

    def __init__(self, clip: float | None = 0.2) -> None:
        self.clip = clip

    def denominators(self, batch: Batch) -> Tensor:
        return (batch.labels_BS != IGNORE_INDEX).sum().double().reshape(1)

    def head(self, batch: Batch, share: TokenShare) -> Head[Tensor]:
        return value_head

    def numerators(self, output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
        if not output.is_last:
            return output.router.aux_loss.new_zeros(1)
        is_label_o = share.own(batch.labels_BS.flatten() != IGNORE_INDEX)
        old_o, return_o = (share.own(batch.per_token[name].flatten()) for name in (OLD_VALUE, RETURN))
        value_o = output.main
        error_o = (value_o - return_o).square()
        if self.clip is not None:
            near_o = old_o + (value_o - old_o).clamp(-self.clip, self.clip)
            error_o = torch.maximum(error_o, (near_o - return_o).square())
        return (error_o * is_label_o).sum().reshape(1) / 2

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[Tensor], batch: Batch, share: TokenShare
    ) -> None:
        if output.is_last:
            is_label_o = share.own(batch.labels_BS.flatten() != IGNORE_INDEX)
            sums["value_tokens"] += is_label_o.sum()
            sums["value_sum"] += output.main[is_label_o].double().sum()
            sums["return_sum"] += share.own(batch.per_token[RETURN].flatten())[is_label_o].double().sum()


def value_head(h_tD: Tensor, heads: Heads, depth: int) -> Tensor:
    """[o]: what the critic says at each of the rank's own tokens."""
    return heads.linear["value"](h_tD).squeeze(-1)
