"""Multi-token prediction: the layer's mathematics, its labels, and what its gradients reach."""

import torch
import torch.nn.functional as F

from glmforge.kernels.documents import Documents
from glmforge.model import GlmMoe
from glmforge.model.inputs import DocumentAttention, ModelInputs
from glmforge.model.loss import CrossEntropyHead, labels_at_depth
from glmforge.model.rope import Rope
from helpers.models import randomize_, tiny_config


def make_model(**overrides: object) -> GlmMoe:
    model = GlmMoe(tiny_config(**overrides))
    randomize_(model)
    return model


def test_labels_stop_at_document_ends() -> None:
    labels_T = torch.tensor([11, 12, -100, 21, -100, 31, 32, 33])  # the last document goes on past the window
    documents = Documents.from_lengths([3, 2, 3])
    assert labels_at_depth(labels_T, documents, 1).tolist() == [12, -100, -100, -100, -100, 32, 33, -100]
    assert labels_at_depth(labels_T, documents, 2).tolist() == [-100, -100, -100, -100, -100, 33, -100, -100]


def test_rows_do_not_leak_into_each_other() -> None:
    """The roll of the flattened batch brings the next row's first token to a row's end; no label may ask for it."""
    labels_T = torch.arange(8)
    assert labels_at_depth(labels_T, Documents.from_lengths([4, 4]), 1).tolist() == [
        1,
        2,
        3,
        -100,
        5,
        6,
        7,
        -100,
    ]


def test_forward_is_the_published_formula() -> None:
    model = make_model()
    ids_BS = torch.randint(0, 512, (1, 9), generator=torch.Generator().manual_seed(1))
    hidden: list[torch.Tensor] = []
    output = model(ids_BS, head=lambda h_TD, lm_head, depth: hidden.append(h_TD) or h_TD)
    mtp = model.mtp_layers[0]
    embedded_TD = model.embed(ids_BS[0])
    documents = Documents.from_lengths([8])
    rope = Rope.at(documents.positions_T, model.config.rotary_dim, model.config.rope_theta, torch.float32)
    # Positions 0..7 have a next token inside the document; written out for them alone.
    concatenated = torch.cat([mtp.enorm(embedded_TD[1:]), mtp.hnorm(hidden[0][:8])], dim=-1)
    x_TD = F.linear(concatenated, mtp.eh_proj.weight)
    x_TD = x_TD + mtp.self_attn(mtp.input_layernorm(x_TD), rope, DocumentAttention(documents))
    x_TD = x_TD + mtp.mlp(mtp.post_attention_layernorm(x_TD)).y_TD
    expected = mtp.shared_head.norm(x_TD)
    torch.testing.assert_close(output.mtp[0][:8], expected, rtol=1e-5, atol=1e-5)


def test_a_later_document_changes_nothing_in_an_earlier_one() -> None:
    model = make_model()
    documents = Documents.from_lengths([6, 6])
    ids_BS = torch.randint(0, 512, (1, 12), generator=torch.Generator().manual_seed(2))
    labels_BS = ids_BS.roll(-1).clone()
    labels_BS[0, [5, 11]] = -100
    changed_BS = ids_BS.clone()
    changed_BS[0, 6:] = (changed_BS[0, 6:] + 1) % 512
    labels_BS[0, 6:] = -100
    head = CrossEntropyHead.whole(labels_BS, documents, 1)
    first, second = (model(ModelInputs.whole(ids, documents, 1), head=head) for ids in (ids_BS, changed_BS))
    torch.testing.assert_close(first.mtp[0], second.mtp[0])
    torch.testing.assert_close(first.main, second.main)


def test_gradients_flow_into_trunk_embedding_and_head() -> None:
    model = make_model(num_nextn_predict_layers=2)
    ids_BS = torch.randint(0, 512, (2, 8), generator=torch.Generator().manual_seed(3))
    documents = Documents.from_lengths([8, 8])
    output = model(ids_BS, head=CrossEntropyHead.whole(ids_BS.roll(-1, 1), documents, 2))
    assert len(output.mtp) == 2
    output.mtp[1].sum.backward()
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight"):
        assert model.get_parameter(name).grad.abs().sum() > 0, name
    for name in ("model.layers.4.eh_proj.weight", "model.layers.5.mlp.experts.down_proj"):
        assert model.get_parameter(name).grad.abs().sum() > 0, name


def test_router_statistics_cover_every_moe_layer() -> None:
    model = make_model()
    ids_BS = torch.randint(0, 512, (2, 8), generator=torch.Generator().manual_seed(4))
    with_mtp, without = model(ids_BS), model(ids_BS, with_mtp=False)
    assert with_mtp.router.counts_LE.shape == (4, 8)
    assert without.router.counts_LE.shape == (3, 8)
    assert (with_mtp.router.counts_LE.sum(dim=1) == 2 * 8 * 2).all()
