import pytest
import torch

from glmforge.kernels.documents import Documents


def test_borders_positions_and_ids():
    documents = Documents.from_lengths([3, 1, 2])
    assert documents.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert documents.cu_seqlens.dtype == torch.int32
    assert documents.lengths == (3, 1, 2)
    assert documents.positions_T.tolist() == [0, 1, 2, 0, 0, 1]
    assert documents.ids_T().tolist() == [0, 0, 0, 1, 2, 2]
    assert (documents.num_tokens, documents.max_length) == (6, 3)


def test_halves_are_as_if_made_by_themselves():
    for half, lengths in zip(Documents.from_lengths([3, 1, 2, 2]).halves(), ([3, 1], [2, 2]), strict=True):
        alone = Documents.from_lengths(lengths)
        assert half.lengths == alone.lengths
        assert torch.equal(half.cu_seqlens, alone.cu_seqlens)
        assert torch.equal(half.positions_T, alone.positions_T)


@pytest.mark.parametrize(
    ("lengths", "offset", "expected"),
    [
        ([3, 1, 2], 1, [1, 1, 0, 0, 1, 0]),
        ([3, 1, 2], 2, [1, 0, 0, 0, 0, 0]),
        ([3, 1, 2], 3, [0, 0, 0, 0, 0, 0]),
        ([4], 1, [1, 1, 1, 0]),  # the last token does not continue in the first
    ],
)
def test_continues_only_inside_a_document(lengths, offset, expected):
    assert Documents.from_lengths(lengths).continues_T(offset).int().tolist() == expected


@pytest.mark.parametrize("lengths", [[], [4, 0], [-1]])
def test_refuses_impossible_lengths(lengths):
    with pytest.raises(ValueError, match="each at least 1"):
        Documents.from_lengths(lengths)
