"""Pairs of documents that are compared: a chosen and a rejected answer, for reward models and preferences.

Rows 2i and 2i + 1 of a batch belong together, regardless of the documents packed in them: the j-th document of the one
is compared with the j-th of the other. So a micro-batch, and a rank's share, has an even number of rows. What fills up
rows is no pair: `Pairs` has it with a weight of 0, as what differs in length would have to wait for the device.

Shapes: P pairs of documents, N documents, o a rank's own tokens.
"""

from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from glmforge.backend.objective import Objective
from glmforge.data.preferences.stream import PAIR
from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.errors import DataError
from glmforge.kernels.transfer import on_device
from glmforge.model.transformer import ForwardOutput
from glmforge.parallel.inputs import TokenShare


class AnswerObjective(Objective, Protocol):
    """An objective that compares one number of each answer: its score, or its log-probability."""

    def answers_N(self, output: ForwardOutput[Any], batch: Batch, share: TokenShare) -> Tensor:
        """That number of each document, from what the last section gives; the same on all ranks that share rows.

        Collective among them, and differentiable as `TokenShare.document_sums` is.
        """
        ...


class Pairs(NamedTuple):
    """The pairs of a batch.

    Attributes:
        chosen_P, rejected_P: numbers of the documents.
        weight_P: float32: 1, or 0 for what fills up the rows.
        number_P: of the pair among all, from 0; -1 for filling.
        source_P: of its row.
    """

    chosen_P: Tensor
    rejected_P: Tensor
    weight_P: Tensor
    number_P: Tensor
    source_P: Tensor


def pairs_of(batch: Batch) -> Pairs:
    """Raises `DataError` as `paired_documents`."""
    chosen_P, rejected_P = paired_documents(batch)
    number_P = at_ends(batch, PAIR)[chosen_P] - 1
    sources = [source for source, lengths in zip(batch.source_B, batch.document_lengths, strict=True) for _ in lengths]
    source_N = on_device(sources, chosen_P.device, torch.int64)
    return Pairs(chosen_P, rejected_P, (number_P >= 0).float(), number_P, source_N[chosen_P])


def at_ends(batch: Batch, name: str) -> Tensor:
    """[N]: what a tensor per token has at the last token of each document."""
    return batch.per_token[name].flatten()[batch.documents().cu_seqlens[1:].long() - 1]


def answer_lengths_N(batch: Batch) -> Tensor:
    """int64 [N]: tokens of each document that are trained on, its answer's."""
    documents, is_asked_T = batch.documents(), (batch.labels_BS.flatten() != IGNORED_LABEL).long()
    return is_asked_T.new_zeros(len(documents.lengths)).index_add_(0, documents.ids_T(), is_asked_T)


def paired_documents(batch: Batch) -> tuple[Tensor, Tensor]:
    """int64 [num_pairs] each: numbers, among the batch's documents row after row, of the chosen and the rejected ones.

    Raises:
        DataError: an odd number of rows, or two rows of a pair with different numbers of documents.
    """
    numbers = [len(lengths) for lengths in batch.document_lengths]
    if len(numbers) % 2:
        raise DataError(f"parallel.micro_batch_size {len(numbers)}: would split the two rows of a pair; make it even")
    for row in range(0, len(numbers), 2):
        if numbers[row] != numbers[row + 1]:
            raise DataError(
                f"sample {batch.sample_indices[row]}: has {numbers[row]} documents, but its paired row has "
                f"{numbers[row + 1]}; pack both in the same order, including padding"
            )
    firsts = [0, *accumulate(numbers)]
    chosen, rejected = (
        [number for row in range(side, len(numbers), 2) for number in range(firsts[row], firsts[row + 1])]
        for side in (0, 1)
    )
    device = batch.ids_BS.device
    return on_device(chosen, device, torch.int64), on_device(rejected, device, torch.int64)
