import numpy as np
import pytest
import torch

from glmforge.data.stream.batch import IGNORED_LABEL
from glmforge.data.stream.evaluation import evaluation_windows
from glmforge.errors import DataError

BYTES = np.arange(1000)  # token i stands for i bytes; 0 is a special token


@pytest.fixture
def shard(make_shard):
    return make_shard([[*range(1, 20), 0], [*range(20, 30), 0]])  # 31 tokens


def labels(batches):
    flat = torch.cat([each.batch.labels_BS.flatten() for each in batches])
    return flat[flat != IGNORED_LABEL].tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("seq_len", [1, 4, 10, 30, 31, 100])
def test_each_token_is_scored_once(shard, seq_len, batch_size):
    batches = list(evaluation_windows(shard, seq_len, 10**9, BYTES, batch_size=batch_size, document_mask=False))
    assert labels(batches) == shard.tokens(1, 31).tolist()
    assert all(each.batch.ids_BS.shape[1] == seq_len for each in batches)
    assert sum(each.num_bytes for each in batches) == sum(range(2, 30))
    assert all(sum(row) == seq_len for each in batches for row in each.batch.document_lengths)


def test_first_token_of_a_document_is_not_predicted(shard):
    batches = list(evaluation_windows(shard, 10, 10**9, BYTES))
    assert labels(batches) == [*range(2, 20), 0, *range(21, 30), 0]
    assert sum(each.num_bytes for each in batches) == sum(range(2, 30)) - 20


@pytest.mark.parametrize("max_tokens", [1, 7, 10, 25])
def test_max_tokens(shard, max_tokens):
    batches = list(evaluation_windows(shard, 10, max_tokens, BYTES, document_mask=False))
    assert labels(batches) == shard.tokens(1, max_tokens + 1).tolist()


def test_filling_is_a_document_of_its_own(shard):
    (last,) = list(evaluation_windows(shard, 20, 10**9, BYTES))[1:]
    assert last.batch.ids_BS.tolist() == [[*range(20, 30), *[0] * 10]]  # 30 ids have a label; [30] is its last label
    assert last.batch.document_lengths == ((10, 10),)
    assert last.batch.num_label_tokens == 10


def test_same_windows_at_every_call(shard):
    first, second = (list(evaluation_windows(shard, 7, 20, BYTES, batch_size=2)) for _ in range(2))
    assert all(torch.equal(a.batch.ids_BS, b.batch.ids_BS) for a, b in zip(first, second, strict=True))


def test_id_that_the_tokenizer_lacks(shard):
    with pytest.raises(DataError, match="outside the vocabulary of 25"):
        list(evaluation_windows(shard, 10, 10**9, BYTES[:25]))
