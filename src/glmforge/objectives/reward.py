"""Reward model: the chosen answer's score is to exceed the rejected one's (Bradley and Terry, 1952).

A pair costs -log sigmoid(chosen - rejected - margin) (the margin is Llama 2's, Touvron et al., 2023, arXiv 2307.09288);
a score is what the head `score` says at an answer's last token. Only differences matter to that, so scores of all
answers may drift together; a second term, (chosen + rejected)^2, holds them around 0 (Eisenstein et al., 2023, arXiv
2312.09244). Both are means over pairs; the routers' balance loss is as elsewhere.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.config.phase import PhaseConfig
from glmforge.config.preferences import RewardConfig
from glmforge.data.preferences.stream import MARGIN, PAIR
from glmforge.data.stream.batch import Batch
from glmforge.model.head import Heads
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.objectives.pair_metrics import PAIR_METRICS, pair_metric_sums, pair_metric_values, pair_sums
from glmforge.objectives.pairs import AnswerObjective, answer_lengths_N, at_ends, pairs_of
from glmforge.observe.metric_table import Metric
from glmforge.parallel.inputs import TokenShare


class RewardObjective(AnswerObjective):
    """Terms `pair_loss`, `center_loss` and the routers' `aux`, as far as they have a weight. `sources` are names."""

    metric_rows = (
        *PAIR_METRICS,
        Metric("center_loss", "1", "preferences", "mean squared sum of a pair's two scores, before its weight"),
    )

    def __init__(self, phase: PhaseConfig, sources: Sequence[str], settings: RewardConfig) -> None:
        self.sources, self.metrics = list(sources), pair_metric_sums(len(sources))
        self.with_center, self.with_aux_loss = settings.center_weight > 0, phase.aux_loss_weight > 0
        weights = {"pair_loss": 1.0, "center_loss": settings.center_weight, "aux": phase.aux_loss_weight}
        used = {name: weight for name, weight in weights.items() if weight}
        self.terms, self.weights = tuple(used), tuple(used.values())

    def denominators(self, batch: Batch) -> Tensor:
        num_pairs = pairs_of(batch).weight_P.sum().double()
        rows = [torch.full_like(num_pairs, len(batch.ids_BS))] if self.with_aux_loss else []
        return torch.stack([num_pairs] * (1 + self.with_center) + rows)

    def head(self, batch: Batch, share: TokenShare) -> Head[Tensor]:
        return _score

    def answers_N(self, output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
        is_end_o = share.own(batch.per_token[PAIR].flatten() > 0)
        return share.document_sums(output.main * is_end_o, batch.documents())

    def numerators(self, output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
        aux = [output.router.aux_loss] if self.with_aux_loss else []
        if not output.is_last:
            return torch.stack([torch.zeros_like(output.router.aux_loss)] * (1 + self.with_center) + aux)
        pairs, scores_N = pairs_of(batch), self.answers_N(output, batch, share)
        chosen_P, rejected_P = scores_N[pairs.chosen_P], scores_N[pairs.rejected_P]
        margin_P = at_ends(batch, MARGIN)[pairs.chosen_P]
        losses = [(-F.logsigmoid(chosen_P - rejected_P - margin_P) * pairs.weight_P).sum()]
        if self.with_center:
            losses.append(((chosen_P + rejected_P).square() * pairs.weight_P).sum())
        return torch.stack([*map(share.once, losses), *aux])

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[Tensor], batch: Batch, share: TokenShare
    ) -> None:
        if output.is_last:
            add_pair_metrics(sums, self.answers_N(output, batch, share), batch, share, len(self.sources))

    def metric_values(self, sums: Mapping[str, Tensor]) -> Mapping[str, object]:
        return pair_metric_values(sums, self.sources)


def add_pair_metrics(
    sums: Mapping[str, Tensor], scores_N: Tensor, batch: Batch, share: TokenShare, num_sources: int
) -> None:
    """Add what `pair_metric_sums` declares, of scores that all ranks which share rows have alike."""
    pairs, lengths_N = pairs_of(batch), answer_lengths_N(batch)
    both_P2 = torch.stack((pairs.chosen_P, pairs.rejected_P), dim=1)
    found = pair_sums(scores_N[both_P2], lengths_N[both_P2], pairs.source_P, pairs.weight_P, num_sources)
    for name, values in found.items():
        sums[name].add_(share.once(values))


def _score(h_tD: Tensor, heads: Heads, depth: int) -> Tensor:
    return heads.linear["score"](h_tD).sum(-1)  # of its one output; FSDP takes no views
