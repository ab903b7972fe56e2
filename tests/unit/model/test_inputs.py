"""What the model reads of a batch, and what it refuses."""

import pytest
import torch

from glmforge.kernels.documents import Documents
from glmforge.model import GlmMoe
from glmforge.model.inputs import NO_TOKEN, ModelInputs, next_ids
from helpers.models import randomize_, tiny_config


def test_whole_rows_written_out() -> None:
    ids_BS = torch.tensor([[11, 12, 13, 21], [31, 32, 41, 42]])
    inputs = ModelInputs.whole(ids_BS, Documents.from_lengths([3, 1, 2, 2]), num_mtp_layers=2)
    assert inputs.ids_T.tolist() == [11, 12, 13, 21, 31, 32, 41, 42]
    assert inputs.positions_T.tolist() == [0, 1, 2, 0, 0, 1, 0, 1]
    assert inputs.rows.row_T.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (inputs.rows.num_rows, inputs.rows.seq_len) == (2, 4)
    x = NO_TOKEN
    assert inputs.next_ids_NT.tolist() == [[12, 13, x, x, 32, x, 42, x], [13, x, x, x, x, x, x, x]]


def test_without_documents_each_row_is_one() -> None:
    inputs = ModelInputs.whole(torch.tensor([[1, 2, 3], [4, 5, 6]]), num_mtp_layers=1)
    assert inputs.positions_T.tolist() == [0, 1, 2, 0, 1, 2]
    assert inputs.next_ids_NT.tolist() == [[2, 3, NO_TOKEN, 5, 6, NO_TOKEN]]


def test_no_depth_has_no_tokens_to_come() -> None:
    assert next_ids(torch.tensor([1, 2]), Documents.from_lengths([2]), 0).shape == (0, 2)


def test_a_row_sum_follows_the_row_of_each_token() -> None:
    rows = ModelInputs.whole(torch.zeros(2, 3, dtype=torch.int64)).rows
    assert (rows.one_hot_BT(torch.float32) @ torch.arange(6.0)).tolist() == [3.0, 12.0]


def test_absent_tokens_embed_to_zero_and_get_no_gradient() -> None:
    model = GlmMoe(tiny_config())
    randomize_(model)
    embedded_TD = model.embed(torch.tensor([5, NO_TOKEN, 0]))
    weight_VD = model.model.embed_tokens.weight
    assert torch.equal(embedded_TD, torch.stack((weight_VD[5], torch.zeros(48), weight_VD[0])))
    embedded_TD.sum().backward()
    assert weight_VD.grad.sum(dim=1).nonzero().flatten().tolist() == [0, 5]
    assert torch.equal(weight_VD.grad[0], torch.ones(48))


@pytest.mark.parametrize("num_mtp_layers", [0, 2])
def test_tokens_to_come_must_fit_the_mtp_layers(num_mtp_layers: int) -> None:
    model = GlmMoe(tiny_config(num_nextn_predict_layers=1))
    randomize_(model)
    inputs = ModelInputs.whole(torch.tensor([[1, 2, 3]]), num_mtp_layers=num_mtp_layers)
    message = (
        f"tokens of {num_mtp_layers} MTP depths, but the model has 1 MTP layers; pass num_mtp_layers, or with_mtp=False"
    )
    with pytest.raises(ValueError, match=message):
        model(inputs)
    output = model(inputs, with_mtp=False)
    assert output.mtp == ()
    assert torch.equal(output.main, model(torch.tensor([[1, 2, 3]])).main)


def test_documents_need_lengths() -> None:
    with pytest.raises(ValueError, match="each at least 1"):
        ModelInputs.whole(torch.tensor([[1, 2]]), Documents.from_lengths([2, 0]))
