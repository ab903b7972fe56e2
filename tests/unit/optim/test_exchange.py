import pytest

from glmforge.optim.exchange import assign_owners
from glmforge.optim.sharding import rows_per_rank


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 7])
def test_owners_loads_are_even_to_within_one_matrix(num_ranks):
    costs = [9, 1, 1, 4, 4, 9, 2, 25, 3, 9, 1]
    owners = assign_owners(costs, num_ranks)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == rank) for rank in range(num_ranks)]
    assert sum(loads) == sum(costs)
    # Greedy bound: no load is above the mean by more than the dearest item
    assert max(loads) <= sum(costs) / num_ranks + max(costs)
    assert assign_owners(costs, num_ranks) == owners


def test_dearest_are_dealt_first():
    assert assign_owners([1, 1, 1, 1, 4], 2) == [1, 1, 1, 1, 0]


def test_equal_matrices_are_dealt_round_robin():
    assert assign_owners([5] * 6, 4) == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("num_rows", "num_ranks", "expected"),
    [(8, 4, [2, 2, 2, 2]), (5, 4, [2, 2, 1, 0]), (1, 3, [1, 0, 0]), (7, 1, [7])],
)
def test_rows_per_rank_by_dtensors_rule(num_rows, num_ranks, expected):
    assert rows_per_rank(num_rows, num_ranks) == expected
