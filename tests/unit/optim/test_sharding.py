import pytest
import torch
from torch import nn

from glmforge.config.layout import Layout
from glmforge.optim.sharding import Split, chunk, splits_of, union_of, union_ranks


@pytest.mark.parametrize(
    ("num_rows", "num_ranks", "expected"),
    [(8, 4, [2, 2, 2, 2]), (5, 4, [2, 2, 1, 0]), (1, 3, [1, 0, 0]), (7, 1, [7])],
)
def test_blocks_are_rounded_up_and_the_last_ones_short(num_rows, num_ranks, expected):
    splits = [Split("fsdp", num_ranks, 0)]
    spans = [chunk((num_rows, 3), splits, {"fsdp": rank}) for rank in range(num_ranks)]
    assert [stop - start for (start, stop), _ in spans] == expected
    assert all(columns == (0, 3) for _, columns in spans)


def test_a_second_axis_cuts_the_blocks_of_the_first():
    splits = [Split("tp", 2, 0), Split("fsdp", 3, 0)]
    where = {(tp, fsdp): {"tp": tp, "fsdp": fsdp} for tp in range(2) for fsdp in range(3)}
    assert chunk((10, 4), splits, where[0, 2]) == ((4, 5), (0, 4))
    assert chunk((10, 4), splits, where[1, 0]) == ((5, 7), (0, 4))
    assert chunk((10, 4), [Split("tp", 2, 1), Split("fsdp", 3, 0)], where[1, 2]) == ((8, 10), (2, 4))


def test_a_plain_tensor_is_not_cut():
    parameter = nn.Parameter(torch.zeros(3, 2))
    assert splits_of(parameter) == ()
    assert union_of(parameter) == "stage"
    assert chunk(parameter.shape, (), {}) == ((0, 3), (0, 2))


def test_the_ranks_of_a_union():
    layout = Layout(pp=2, dp_replicate=2, dp_shard=2, tp=2, ep=4)
    assert list(union_ranks(layout, 11, "stage")) == list(range(8, 16))
    assert list(union_ranks(layout, 11, "expert_stage")) == [11, 15]
    assert list(union_ranks(layout, 0, "expert_stage")) == [0, 4]
