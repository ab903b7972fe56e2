"""Which documents of two neighbouring rows are compared."""

import pytest
import torch

from glmforge.data.stream.batch import Batch
from glmforge.errors import DataError
from glmforge.objectives.pairs import paired_documents


def batch_of(*document_lengths: tuple[int, ...]) -> Batch:
    ids_BS, numbers = torch.zeros(len(document_lengths), 8, dtype=torch.int64), tuple(range(len(document_lengths)))
    return Batch(ids_BS, ids_BS, document_lengths, numbers, numbers)


def test_documents_of_neighbouring_rows_are_pairs_in_their_order() -> None:
    chosen_P, rejected_P = paired_documents(batch_of((3, 5), (7, 1), (8,), (8,)))
    assert (chosen_P.tolist(), rejected_P.tolist()) == ([0, 1, 4], [2, 3, 5])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (((8,), (8,), (8,)), "micro_batch_size 3: would split the two rows of a"),
        (((8,), (4, 4)), "sample 0: has 1 documents"),
    ],
)
def test_rows_without_a_partner_are_refused(rows: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        paired_documents(batch_of(*rows))
