"""Next-token prediction: the objective of pre-training and of every stage that continues it."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from glmforge.backend.objective import MetricSum, Objective
from glmforge.config.phase import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.kernels.cross_entropy import IGNORE_INDEX
from glmforge.kernels.transfer import on_device
from glmforge.model.loss import CrossEntropy, CrossEntropyHead, Targets, labels_at_depth
from glmforge.model.transformer import ForwardOutput
from glmforge.observe.metric_table import Metric
from glmforge.parallel.inputs import TokenShare

LOSS_WEIGHT = "loss_weight"
"""In `Batch.per_token`, float32: how much each label counts in the means. Without it all count alike."""


class NextTokenObjective(Objective):
    """Cross-entropy of the next token, of each MTP depth, the routers' sequence-level balance loss, and a z-loss.

    MTP depths share `mtp_loss_weight` equally and average over their own labels; the balance loss is a mean over
    rows and a sum over layers; the z-loss is a mean of (log Z)^2 of the next token's logits over its labels. A term of
    weight 0 is not computed at all. Means over labels are weighted by `LOSS_WEIGHT`: a label's weight is that of the
    token it asks for, at every depth.

    Metrics, [num_sources] each: label tokens of each source of data (`Batch.source_B`) and their summed next-token
    cross-entropy.
    """

    metric_rows: tuple[Metric, ...] = (
        Metric(
            "z_loss", "nats^2/token", "loss", "mean squared log of the logits' summed exponentials, before its weight"
        ),
    )

    def __init__(self, phase: PhaseConfig, num_mtp_layers: int, num_sources: int = 1) -> None:
        self.metrics = (MetricSum("source_tokens", num_sources), MetricSum("source_nll", num_sources))
        self.num_mtp = num_mtp_layers if phase.mtp_loss_weight else 0
        self.with_aux_loss = phase.aux_loss_weight > 0
        self.terms = ("loss", *(f"mtp_{depth}" for depth in range(1, self.num_mtp + 1)))
        self.weights = (1.0, *[phase.mtp_loss_weight / max(1, num_mtp_layers)] * self.num_mtp)
        if self.with_aux_loss:
            self.terms += ("aux",)
            self.weights += (phase.aux_loss_weight,)
        self.z_weight = phase.z_loss_weight
        if self.z_weight:
            self.terms += ("z_loss",)
            self.weights += (self.z_weight,)

    def denominators(self, batch: Batch) -> Tensor:
        amounts = [_amount(targets) for targets in self.targets(batch)]
        if self.with_aux_loss:
            amounts.append(torch.full_like(amounts[0], batch.ids_BS.shape[0]))
        if self.z_weight:
            amounts.append(amounts[0])
        return torch.stack(amounts)

    def head(self, batch: Batch, share: TokenShare) -> CrossEntropyHead:
        taken = [
            Targets(share.take(labels_T), None if weights_T is None else share.take(weights_T))
            for labels_T, weights_T in self.targets(batch)
        ]
        return CrossEntropyHead(taken, self.z_weight)

    def numerators(self, output: ForwardOutput[CrossEntropy], batch: Batch, share: TokenShare) -> Tensor:
        aux_loss = output.router.aux_loss
        losses = (
            [each.sum for each in (output.main, *output.mtp)]
            if output.is_last
            else [torch.zeros_like(aux_loss)] * (1 + self.num_mtp)
        )
        if self.with_aux_loss:
            losses.append(aux_loss)
        if self.z_weight:
            # The head has differentiated both terms at once, in their proportion here: both are means over the same
            # labels. The gradient of both goes through the first one, whose value is the cross-entropy again.
            z_sum = cast(Tensor, output.main.z_sum) if output.is_last else torch.zeros_like(aux_loss)
            losses[0] = losses[0] - self.z_weight * z_sum
            losses.append(z_sum)
        return torch.stack(losses)

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[CrossEntropy], batch: Batch, share: TokenShare
    ) -> None:
        if not output.is_last:
            return
        source_B = on_device(batch.source_B, batch.labels_BS.device, torch.int64)
        source_T = source_B.repeat_interleave(batch.ids_BS.shape[1], output_size=batch.num_tokens)
        asked_t = share.own(batch.labels_BS.flatten() != IGNORE_INDEX)
        sums["source_tokens"].index_add_(0, share.own(source_T), asked_t.double())
        sums["source_nll"].index_add_(0, share.take(source_T), output.main.nll_T.double())

    def targets(self, batch: Batch) -> list[Targets]:
        """Labels of all tokens of the rows at each depth."""
        documents, labels_T, weights_T = batch.documents(), batch.labels_BS.flatten(), self.weights_T(batch)
        return [
            Targets(
                labels_at_depth(labels_T, documents, depth),
                # Behind the end of a document there is no label, so what is rolled in from elsewhere does not count.
                None if weights_T is None else weights_T.roll(-depth),
            )
            for depth in range(self.num_mtp + 1)
        ]

    def weights_T(self, batch: Batch) -> Tensor | None:
        """How much the next token of each token of the rows counts; None: all alike."""
        return batch.per_token[LOSS_WEIGHT].flatten() if LOSS_WEIGHT in batch.per_token else None


def _amount(targets: Targets) -> Tensor:
    """float64: the labels, or the sum of their weights."""
    is_asked_T = targets.labels_T >= 0
    return (is_asked_T if targets.weights_T is None else targets.weights_T.double() * is_asked_T).sum().double()
