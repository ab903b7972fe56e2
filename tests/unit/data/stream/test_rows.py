"""All packings behind one interface."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from glmforge.data.stream.rows import Packing, open_rows
from glmforge.data.stream.windows import read_window
from glmforge.data.tokens.shards import TokenShard

END = 0


@pytest.fixture
def shard(make_shard: Callable[..., TokenShard]) -> TokenShard:
    return make_shard([[1, 2, 3, END], [4, END], [5, 6, 7, 8, END]])


@pytest.mark.parametrize("document_mask", [True, False])
def test_truncated_rows_are_windows(shard: TokenShard, document_mask: bool) -> None:
    rows = open_rows(shard, seq_len=3, packing="truncate", document_mask=document_mask)
    assert rows.num_rows == 3  # 11 tokens: three windows of 3 and the label of the last
    for index in range(rows.num_rows):
        window, expected = rows.row(index), read_window(shard, 3 * index, 3, document_mask)
        assert window.labels_S.tolist() == expected.labels_S.tolist()
        assert window.lengths == expected.lengths
    with pytest.raises(IndexError):
        rows.row(3)


@pytest.mark.parametrize("document_mask", [True, False])
@pytest.mark.parametrize("packing", ["truncate", "best_fit", "single"])
def test_a_row_lies_where_it_says(shard: TokenShard, packing: Packing, document_mask: bool) -> None:
    rows = open_rows(shard, seq_len=5, packing=packing, document_mask=document_mask)
    copy = pickle.loads(pickle.dumps(rows))
    for index in range(rows.num_rows):
        ids = np.concatenate([shard.tokens(start, stop) for start, stop in copy.describe(index)])
        assert copy.row(index).ids_S[: len(ids)].tolist() == ids.tolist()
        assert rows.row(index).labels_S.tolist() == copy.row(index).labels_S.tolist()
