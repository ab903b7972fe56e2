"""A reward model: the score head's answer at the last token of each document, compared in pairs (Bradley-Terry)."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.backend.objective import MetricSum, Objective
from glmforge.data.stream.batch import Batch
from glmforge.model.head import Heads
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.objectives.pairs import paired_documents
from glmforge.parallel.inputs import TokenShare


class RewardObjective(Objective):
    """-log sigmoid(chosen - rejected - margin), a mean over pairs; `Batch.per_row["margin"]` of the chosen row.

    `Batch.per_token["is_scored"]` marks one token of each document. Metric: how many pairs are in the right order.
    """

    terms = ("reward",)
    weights = (1.0,)
    metrics = (MetricSum("right"),)

    def denominators(self, batch: Batch) -> Tensor:
        chosen_P, _ = paired_documents(batch)
        return torch.tensor([len(chosen_P)], dtype=torch.float64, device=chosen_P.device)

    def head(self, batch: Batch, share: TokenShare) -> Head[Tensor]:
        return score

    def numerators(self, output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
        if not output.is_last:
            return torch.zeros(1, device=batch.ids_BS.device)
        return share.once(-F.logsigmoid(differences(output, batch, share)).sum(0, keepdim=True))

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[Tensor], batch: Batch, share: TokenShare
    ) -> None:
        if output.is_last:
            sums["right"] += share.once((differences(output, batch, share) > 0).sum())


def score(h_TD: Tensor, heads: Heads, depth: int) -> Tensor:
    return heads.linear["score"](h_TD).squeeze(-1)


def differences(output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
    """How far the reward of each chosen document exceeds that of the rejected one and the margin."""
    is_scored = share.own(batch.per_token["is_scored"].flatten())
    rewards_N = share.document_sums(output.main * is_scored, batch.documents())
    chosen_P, rejected_P = paired_documents(batch)
    num_documents = torch.tensor([len(lengths) for lengths in batch.document_lengths], device=chosen_P.device)
    margin_N = batch.per_row["margin"].repeat_interleave(num_documents)
    return rewards_N[chosen_P] - rewards_N[rejected_P] - margin_N[chosen_P]
