"""Direct preference optimisation (Rafailov et al., 2023, arXiv 2305.18290): a policy learns from pairs without a reward
model, as its own is implicit: beta * (log p(answer) - log p of the reference).

A pair costs -log sigmoid(chosen - rejected) of these rewards; with label smoothing a share of the pairs is taken to be
the wrong way round (cDPO). Log-probabilities are sums over the answer's tokens, its end included, in fp32. Those of the
reference, which is the policy before the first step, come with the batch (`REFERENCE`), so there is no second model.

MTP layers go on learning next tokens, of the chosen answers alone, with `mtp_loss_weight` as in supervised fine-tuning:
drafts stay true to what the policy writes. Part of that gradient reaches the trunk; 0 is DPO and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.backend.objective import MetricSum
from glmforge.config.phase import PhaseConfig
from glmforge.config.preferences import DpoConfig
from glmforge.data.preferences.stream import REFERENCE
from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.model.head import Heads
from glmforge.model.loss import CrossEntropyHead, Targets
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.objectives.pair_metrics import PAIR_METRICS, pair_metric_sums, pair_metric_values
from glmforge.objectives.pairs import AnswerObjective, Pairs, at_ends, pairs_of
from glmforge.objectives.reward import add_pair_metrics
from glmforge.observe.metric_table import Metric
from glmforge.parallel.inputs import TokenShare


class DpoObjective(NextTokenObjective, AnswerObjective):
    """Terms `pair_loss`, `mtp_1` ... and `aux`, those with a weight. `sources` are names, for metrics."""

    metric_rows = (
        *PAIR_METRICS,
        Metric("logprob_chosen", "nats/answer", "preferences", "mean log-probability of the chosen answers"),
        Metric("logprob_rejected", "nats/answer", "preferences", "the same of the rejected answers"),
    )

    def __init__(self, phase: PhaseConfig, num_mtp_layers: int, sources: Sequence[str], settings: DpoConfig) -> None:
        super().__init__(phase, num_mtp_layers)
        self.beta, self.smoothing, self.sources = settings.beta, settings.label_smoothing, list(sources)
        self.terms = ("pair_loss", *self.terms[1:])
        self.metrics = (*pair_metric_sums(len(sources)), MetricSum("pair_logprobs", 2))

    def denominators(self, batch: Batch) -> Tensor:
        amounts = super().denominators(batch)
        amounts[0] = pairs_of(batch).weight_P.sum()
        return amounts

    def targets(self, batch: Batch) -> list[Targets]:
        """Of the next token both answers' labels, of MTP depths the chosen one's alone."""
        if not self.num_mtp:
            return super().targets(batch)
        labels_BS = batch.labels_BS.clone()
        labels_BS[1::2] = IGNORED_LABEL
        return [Targets(batch.labels_BS.flatten()), *super().targets(replace(batch, labels_BS=labels_BS))[1:]]

    def head(self, batch: Batch, share: TokenShare) -> Head[Any]:  # type: ignore[override]
        labels_t, ahead = share.take(batch.labels_BS.flatten()), super().head(batch, share)
        return _AnswerHead(labels_t, ahead)

    def answers_N(self, output: ForwardOutput[Any], batch: Batch, share: TokenShare) -> Tensor:
        return share.document_sums(-output.main, batch.documents())

    def numerators(self, output: ForwardOutput[Any], batch: Batch, share: TokenShare) -> Tensor:
        aux_loss = output.router.aux_loss
        losses = [torch.zeros_like(aux_loss)] * (1 + self.num_mtp)
        if output.is_last:
            pairs = pairs_of(batch)
            gap_P = self._gap_P(self._rewards_N(self.answers_N(output, batch, share), batch), pairs)
            losses_P = -(1 - self.smoothing) * F.logsigmoid(gap_P) - self.smoothing * F.logsigmoid(-gap_P)
            losses = [share.once((losses_P * pairs.weight_P).sum()), *(each.sum for each in output.mtp)]
        return torch.stack([*losses, aux_loss] if self.with_aux_loss else losses)

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[Any], batch: Batch, share: TokenShare
    ) -> None:
        if not output.is_last:
            return
        logprobs_N, pairs = self.answers_N(output, batch, share), pairs_of(batch)
        add_pair_metrics(sums, self._rewards_N(logprobs_N, batch), batch, share, len(self.sources))
        of_sides = [(logprobs_N[side].double() * pairs.weight_P).sum() for side in (pairs.chosen_P, pairs.rejected_P)]
        sums["pair_logprobs"].add_(share.once(torch.stack(of_sides)))

    def metric_values(self, sums: Mapping[str, Tensor]) -> Mapping[str, object]:
        values = pair_metric_values(sums, self.sources)
        if not values:
            return {}
        chosen, rejected = (sums["pair_logprobs"] / sums["pair_pairs"].sum()).tolist()
        return values | {"logprob_chosen": chosen, "logprob_rejected": rejected}

    def _rewards_N(self, logprobs_N: Tensor, batch: Batch) -> Tensor:
        """Implicit rewards of the documents."""
        return self.beta * (logprobs_N - at_ends(batch, REFERENCE))

    def _gap_P(self, rewards_N: Tensor, pairs: Pairs) -> Tensor:
        return rewards_N[pairs.chosen_P] - rewards_N[pairs.rejected_P]


class _AnswerHead:
    """`nll_o` of the labels; of MTP depths, what `ahead` gives."""

    def __init__(self, labels_t: Tensor, ahead: CrossEntropyHead) -> None:
        self.labels_t, self.ahead = labels_t, ahead

    def __call__(self, h_tD: Tensor, heads: Heads, depth: int) -> Any:
        return self.ahead(h_tD, heads, depth) if depth else heads.lm.token_nll(h_tD, self.labels_t)
