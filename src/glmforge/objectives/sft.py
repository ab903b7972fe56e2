"""Supervised fine-tuning: the next token of what the assistant writes, averaged over tokens or over conversations.

Which tokens those are stands in the data: labels elsewhere are ignored, and `LOSS_WEIGHT` says how much the others
count. A mean over tokens gives a conversation the more weight the longer its answers are; a mean over conversations
gives each the same, also one that is several documents, in any rows and batches these are.
"""

from typing import Literal

import torch
from torch import Tensor

from glmforge.config.phase import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.kernels.cross_entropy import IGNORE_INDEX
from glmforge.objectives.next_token import NextTokenObjective

Mean = Literal["tokens", "conversations"]

CONVERSATION_SUM = "conversation_sum"
"""In `Batch.per_token`, float32: what the weights of a token's conversation add up to; 0 where that is not known."""


class SftObjective(NextTokenObjective):
    """As `NextTokenObjective`, with means over trained tokens or over conversations.

    Of a conversation the next tokens' weights add up to 1, over all of its documents where the batch knows their sum
    (`CONVERSATION_SUM`), else over each document. MTP depths ask for the same tokens with the same weights, as
    far as they lie inside the conversation.
    """

    def __init__(self, phase: PhaseConfig, num_mtp_layers: int, num_sources: int = 1, *, mean: Mean = "tokens") -> None:
        super().__init__(phase, num_mtp_layers, num_sources)
        self.mean = mean

    def weights_T(self, batch: Batch) -> Tensor | None:
        weights_T = super().weights_T(batch)
        if self.mean == "tokens":
            return weights_T
        documents, is_asked_T = batch.documents(), batch.labels_BS.flatten() != IGNORE_INDEX
        asked_T = is_asked_T.float() if weights_T is None else weights_T * is_asked_T
        document_T = documents.ids_T()
        sums_N = asked_T.new_zeros(len(documents.lengths)).index_add_(0, document_T, asked_T)
        sums_T = sums_N[document_T]
        if CONVERSATION_SUM in batch.per_token:
            known_T = batch.per_token[CONVERSATION_SUM].flatten()
            sums_T = known_T.where(known_T > 0, sums_T)
        return asked_T / sums_T.where(sums_T > 0, torch.ones_like(sums_T))
