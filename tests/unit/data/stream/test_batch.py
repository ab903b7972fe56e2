from dataclasses import replace

import numpy as np
import pytest
import torch

from glmforge.data.stream.batch import IGNORED_LABEL, ROUTED_EXPERTS, PackedDocument, pack
from glmforge.data.stream.windows import num_windows, read_window, to_batch
from glmforge.errors import DataError

END = 0
DOCUMENTS = [[1, 2, 3, END], [4, END], [5, 6, 7, 8, 9, 10, END]]  # 13 tokens: 3 windows of 4


@pytest.fixture
def shard(make_shard):
    return make_shard(DOCUMENTS)


def rows(shard, seq_len, document_mask):
    count = num_windows(shard, seq_len)
    return [read_window(shard, i * seq_len, seq_len, document_mask) for i in range(count)]


def test_every_token_but_the_first_is_a_label_once(shard):
    windows = rows(shard, 4, document_mask=False)
    flat = [token for document in DOCUMENTS for token in document]
    assert np.concatenate([window.ids_S for window in windows]).tolist() == flat[:-1]
    assert np.concatenate([window.labels_S for window in windows]).tolist() == flat[1:]
    assert all(window.lengths == (4,) for window in windows)


def test_labels_stop_at_document_borders(shard):
    windows = rows(shard, 4, document_mask=True)
    x = IGNORED_LABEL
    assert [window.ids_S.tolist() for window in windows] == [[1, 2, 3, END], [4, END, 5, 6], [7, 8, 9, 10]]
    assert [window.labels_S.tolist() for window in windows] == [
        [2, 3, END, x],
        [END, x, 6, 7],
        [8, 9, 10, END],
    ]
    assert [window.lengths for window in windows] == [(4,), (2, 2), (4,)]


@pytest.mark.parametrize("seq_len", range(1, 13))
def test_a_masked_label_ends_a_document_of_its_row(shard, seq_len):
    """Against the plain definition, token by token."""
    owner = np.repeat([0, 1, 2], [len(document) for document in DOCUMENTS])
    for i, window in enumerate(rows(shard, seq_len, document_mask=True)):
        here = owner[i * seq_len : i * seq_len + seq_len + 1]
        assert (window.labels_S == IGNORED_LABEL).tolist() == (here[1:] != here[:-1]).tolist()
        assert list(window.lengths) == np.unique(here[:-1], return_counts=True)[1].tolist()


@pytest.fixture
def batch(shard):
    return to_batch(rows(shard, 4, document_mask=True), sample_indices=[7, 8, 9], sources=[0, 1, 0])


def test_batch(batch):
    assert batch.ids_BS.shape == batch.labels_BS.shape == (3, 4)
    assert batch.ids_BS.dtype == batch.labels_BS.dtype == torch.int64
    assert (batch.num_tokens, batch.num_label_tokens) == (12, 10)
    assert (batch.document_lengths, batch.sample_indices, batch.source_B) == (
        ((4,), (2, 2), (4,)),
        (7, 8, 9),
        (0, 1, 0),
    )


def test_documents_of_all_rows(batch):
    documents = batch.documents()
    assert documents.lengths == (4, 2, 2, 4)
    assert documents.positions_T.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 2, 3]


def test_micro_batches_are_the_rows_in_order(batch):
    parts = batch.micro_batches(1)
    assert torch.equal(torch.cat([part.ids_BS for part in parts]), batch.ids_BS)
    assert torch.equal(torch.cat([part.labels_BS for part in parts]), batch.labels_BS)
    assert [part.document_lengths for part in parts] == [((4,),), ((2, 2),), ((4,),)]
    assert [part.sample_indices for part in parts] == [(7,), (8,), (9,)]
    assert [part.source_B for part in parts] == [(0,), (1,), (0,)]


@pytest.mark.parametrize("size", [0, 2, 4])
def test_micro_batches_must_divide_the_batch(batch, size):
    with pytest.raises(DataError, match=f"micro_batch_size {size}: does not divide the rank's 3 sequences"):
        batch.micro_batches(size)


def test_batch_moves_to_a_device(batch):
    moved = batch.to("meta")
    assert moved.ids_BS.device.type == moved.labels_BS.device.type == "meta"
    assert moved.document_lengths == batch.document_lengths


def test_named_tensors_go_along(batch):
    per_token = {"weights": torch.rand(3, 4), "experts": torch.randint(8, (3, 4, 2, 2), dtype=torch.int16)}
    per_row = {"margin": torch.rand(3), "ratings": torch.rand(3, 5)}
    batch = replace(batch, per_token=per_token, per_row=per_row)
    parts = batch.micro_batches(1)
    for name, tensor in per_token.items():
        assert torch.equal(torch.cat([part.per_token[name] for part in parts]), tensor)
    for name, tensor in per_row.items():
        assert torch.equal(torch.cat([part.per_row[name] for part in parts]), tensor)
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in (*moved.per_token.values(), *moved.per_row.values())} == {"meta"}


@pytest.mark.parametrize("changes", [{"per_token": {"x": torch.zeros(3)}}, {"per_row": {"x": torch.zeros(4, 3)}}])
def test_named_tensors_are_of_the_batch(batch, changes):
    with pytest.raises(ValueError, match=r"\['x'\] is \["):
        replace(batch, **changes)


def document(*ids: int, **per_token: torch.Tensor) -> PackedDocument:
    ids_N = torch.tensor(ids)
    return PackedDocument(ids_N, torch.cat((ids_N[1:], torch.tensor([IGNORED_LABEL]))), per_token)


def test_documents_are_packed_with_their_tensors_and_filled_without_labels():
    first, second, third = (torch.full((n, 2, 3), n, dtype=torch.int16) for n in (3, 2, 5))
    rows = [
        [
            document(1, 2, 3, score=torch.rand(3), routed_experts=first),
            document(4, 5, score=torch.ones(2), routed_experts=second),
        ],
        [document(1, 2, 3, 4, 5, score=torch.rand(5), routed_experts=third)],
    ]
    batch = pack(rows, 6, sample_indices=[3, 4], source_B=[0, 1], per_row={"reward": torch.rand(2)}, fill_id=9)
    assert batch.document_lengths == ((3, 2, 1), (5, 1))
    assert batch.ids_BS.tolist() == [[1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 9]]
    x = IGNORED_LABEL
    assert batch.labels_BS.tolist() == [[2, 3, x, 5, x, x], [2, 3, 4, 5, x, x]]
    assert batch.per_token["score"][0, 3:].tolist() == [1, 1, 0]
    experts = batch.per_token[ROUTED_EXPERTS]
    assert (experts.dtype, experts.shape) == (torch.int16, (2, 6, 2, 3))
    assert experts[..., 1, 2].tolist() == [[3, 3, 3, 2, 2, -1], [5, 5, 5, 5, 5, -1]]


def test_documents_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="sample 7: its documents have 4 tokens; a row has 3"):
        pack([[document(1, 2), document(3, 4)]], 3, sample_indices=[7], source_B=[0])
    with pytest.raises(DataError, match=r"sample 7: has \[\], other documents \['score'\]"):
        pack([[document(1, score=torch.ones(1)), document(2)]], 3, sample_indices=[7], source_B=[0])
