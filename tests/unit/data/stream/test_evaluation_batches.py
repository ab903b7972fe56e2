"""The evaluation subset of a shard: which text, and each token of it once."""

import numpy as np
import pytest
import torch

from glmforge.data.stream.batch import IGNORED_LABEL
from glmforge.data.stream.evaluation import DrawnSamples, EvaluationBatches
from glmforge.errors import DataError

BYTES = np.arange(1000)  # token i stands for i bytes; 0 is a special token


@pytest.fixture
def shard(make_shard):
    return make_shard([[*range(1, 20), 0], [*range(20, 30), 0]])  # 31 tokens


def labels(batches):
    flat = torch.cat([each.batch.labels_BS.flatten() for each in batches])
    return flat[flat != IGNORED_LABEL].tolist()


@pytest.mark.parametrize("rows_per_batch", [1, 2, 5])
@pytest.mark.parametrize("seq_len", [1, 4, 10, 30, 31, 100])
def test_each_token_is_scored_once(shard, seq_len, rows_per_batch):
    batches = list(EvaluationBatches(shard, seq_len, 10**9, BYTES, rows_per_batch=rows_per_batch, document_mask=False))
    assert labels(batches) == shard.tokens(1, 31).tolist()
    assert all(each.batch.ids_BS.shape[1] == seq_len for each in batches)
    assert sum(each.num_bytes for each in batches) == sum(range(2, 30))
    assert all(sum(row) == seq_len for each in batches for row in each.batch.document_lengths)


def test_first_token_of_a_document_is_not_predicted(shard):
    batches = list(EvaluationBatches(shard, 10, 10**9, BYTES))
    assert labels(batches) == [*range(2, 20), 0, *range(21, 30), 0]
    assert sum(each.num_bytes for each in batches) == sum(range(2, 30)) - 20


@pytest.mark.parametrize("max_tokens", [1, 3, 7, 10, 25, 29, 30])
def test_max_tokens_are_scored_and_none_twice(shard, max_tokens):
    batches = list(EvaluationBatches(shard, 3, max_tokens, BYTES, rows_per_batch=2, document_mask=False))
    scored = labels(batches)
    assert len(scored) == max_tokens
    others = [token for token in scored if token]  # 0 ends both documents, all other ids are there once and ascend
    assert others == sorted(set(others))
    assert scored.count(0) <= 2


@pytest.mark.parametrize(
    ("max_tokens", "starts"),
    [(3, [0]), (6, [0, 15]), (9, [0, 9, 18]), (15, [0, 6, 12, 18, 24]), (14, [0, 6, 12, 18, 24])],
)
def test_rows_are_spread_over_the_shard(shard, max_tokens, starts):
    """Ten rows of 3 labels; row i of n is floor(10 i / n)."""
    batches = list(EvaluationBatches(shard, 3, max_tokens, BYTES, document_mask=False))
    assert [each.batch.ids_BS[0, 0].item() for each in batches] == [shard.tokens(a, a + 1).item() for a in starts]


@pytest.mark.parametrize("number", [1, 4, 9, 10, 11])
def test_samples_are_rows_drawn_by_the_seed(shard, number):
    """Of ten rows of 3 labels; more samples are those of fewer and others."""
    batches = list(EvaluationBatches(shard, 3, DrawnSamples(number, 42), BYTES, document_mask=False))
    starts = [each.batch.ids_BS[0, 0].item() for each in batches]
    assert starts == sorted(set(starts)) or 0 in starts
    assert len(starts) == min(number, 10)
    more = list(EvaluationBatches(shard, 3, DrawnSamples(number + 1, 42), BYTES, document_mask=False))
    assert set(starts) <= {each.batch.ids_BS[0, 0].item() for each in more}


def test_another_seed_draws_other_samples(shard):
    drawn = [EvaluationBatches(shard, 1, DrawnSamples(8, seed), BYTES, document_mask=False) for seed in (42, 42, 43)]
    first, again, other = (labels(list(batches)) for batches in drawn)
    assert first == again != other


def test_all_is_scored(shard):
    assert labels(EvaluationBatches(shard, 4, None, BYTES, document_mask=False)) == shard.tokens(1, 31).tolist()


def test_a_batch_is_read_alone(shard):
    """Reading one batch reads no other: rank r of W reads batches r, r + W, ..."""
    batches = EvaluationBatches(shard, 4, 24, BYTES, rows_per_batch=2, source=3)
    assert (batches.num_rows, len(batches)) == (6, 3)
    assert torch.equal(batches[2].batch.ids_BS, list(batches)[2].batch.ids_BS)
    assert batches[2].batch.sample_indices == (4, 5)
    assert batches[2].batch.source_B == (3, 3)
    with pytest.raises(IndexError):
        batches[3]


def test_no_token_to_predict(make_shard):
    with pytest.raises(DataError, match="hold out more text"):
        EvaluationBatches(make_shard([[1]]), 4, 10, BYTES)


def test_filling_is_a_document_of_its_own(shard):
    (last,) = list(EvaluationBatches(shard, 20, 10**9, BYTES))[1:]
    assert last.batch.ids_BS.tolist() == [[*range(20, 30), *[0] * 10]]  # 30 ids have a label; [30] is its last label
    assert last.batch.document_lengths == ((10, 10),)
    assert last.batch.num_label_tokens == 10


def test_id_that_the_tokenizer_lacks(shard):
    with pytest.raises(DataError, match="outside the vocabulary of 25"):
        list(EvaluationBatches(shard, 10, 10**9, BYTES[:25]))
