"""Pairs of documents that are compared: a chosen and a rejected answer, for reward models and preferences.

Rows 2i and 2i + 1 of a batch belong together, regardless of the documents packed in them: the j-th document of the one
is compared with the j-th of the other. So a micro-batch, and a rank's share, has an even number of rows.
"""

import torch
from torch import Tensor

from glmforge.data.stream.batch import Batch
from glmforge.errors import DataError


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
    row_N = torch.arange(len(numbers)).repeat_interleave(torch.tensor(numbers))
    number_N = torch.arange(len(row_N))
    device = batch.ids_BS.device
    return number_N[row_N % 2 == 0].to(device), number_N[row_N % 2 == 1].to(device)
