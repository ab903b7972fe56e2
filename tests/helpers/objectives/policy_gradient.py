"""Policy gradients with a clipped ratio (PPO, Schulman et al., 2017, arXiv 1707.06347), with the routers' balance."""

from collections.abc import Mapping

import torch
from torch import Tensor

from glmforge.backend.objective import MetricSum, Objective
from glmforge.data.stream.batch import Batch
from glmforge.model.head import Heads
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.parallel.inputs import TokenShare

CLIP = 0.2


class PolicyGradientObjective(Objective):
    """-min(r A, clip(r) A), a mean over label tokens, with r = p / p_old of the token that was sampled.

    `Batch.per_token` holds `advantages` and `old_logprobs`. Metric: how many tokens are clipped.
    """

    terms = ("policy", "aux")
    weights = (1.0, 0.01)
    metrics = (MetricSum("clipped"),)
    with_aux_loss = True

    def denominators(self, batch: Batch) -> Tensor:
        num_rows = torch.tensor(len(batch.ids_BS), device=batch.ids_BS.device)
        return torch.stack([(batch.labels_BS >= 0).sum(), num_rows]).double()

    def head(self, batch: Batch, share: TokenShare) -> Head[Tensor]:
        labels_T = share.take(batch.labels_BS.flatten())

        def token_nll(h_TD: Tensor, heads: Heads, depth: int) -> Tensor:
            return heads.lm.token_nll(h_TD, labels_T)

        return token_nll

    def numerators(self, output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
        aux_loss = output.router.aux_loss
        if not output.is_last:
            return torch.stack([torch.zeros_like(aux_loss), aux_loss])
        plain_o, clipped_o = surrogates(output, batch, share)
        return torch.stack([-torch.minimum(plain_o, clipped_o).sum(), aux_loss])

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[Tensor], batch: Batch, share: TokenShare
    ) -> None:
        if output.is_last:
            plain_o, clipped_o = surrogates(output, batch, share)
            sums["clipped"] += (clipped_o < plain_o).sum()


def surrogates(output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> tuple[Tensor, Tensor]:
    """r A and clip(r) A of the rank's own tokens, 0 where there is no label."""
    advantages_o, old_o, labels_o = (
        share.own(x_BS.flatten())
        for x_BS in (batch.per_token["advantages"], batch.per_token["old_logprobs"], batch.labels_BS)
    )
    ratio_o = torch.exp(-output.main - old_o)
    weight_o = advantages_o * (labels_o >= 0)
    return ratio_o * weight_o, ratio_o.clamp(1 - CLIP, 1 + CLIP) * weight_o
