import pytest
import torch

from glmforge.config.layout import Layout
from glmforge.config.optimizers import OPTIMIZERS
from glmforge.config.parameter_groups import ParameterGroup
from glmforge.optim import ownership as ownership_module
from glmforge.optim.matrices import Slice
from glmforge.optim.ownership import assign_owners, plan_rounds
from glmforge.optim.update_rule import TrainedParameter
from glmforge.parallel.world import World

NUM_EXPERTS, INNER, HIDDEN = 3, 5, 8
GROUP = ParameterGroup(OPTIMIZERS["muon"], weight_decay=0.0, lr_scale=1.0, parameters=())


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 7])
def test_owners_loads_are_even_to_within_one_matrix(num_ranks):
    costs = [9, 1, 1, 4, 4, 9, 2, 25, 3, 9, 1]
    loads = [0] * num_ranks
    owners = assign_owners(costs, [range(num_ranks)] * len(costs), loads)
    assert loads == [sum(c for c, o in zip(costs, owners, strict=True) if o == rank) for rank in range(num_ranks)]
    assert sum(loads) == sum(costs)
    # Greedy bound: no load is above the mean by more than the dearest item
    assert max(loads) <= sum(costs) / num_ranks + max(costs)
    assert assign_owners(costs, [range(num_ranks)] * len(costs), [0] * num_ranks) == owners


def test_dearest_are_dealt_first():
    assert assign_owners([1, 1, 1, 1, 4], [range(2)] * 5, [0, 0]) == [1, 1, 1, 1, 0]


def test_equal_matrices_are_dealt_round_robin():
    assert assign_owners([5] * 6, [range(4)] * 6, [0] * 4) == [0, 1, 2, 3, 0, 1]


def test_owners_are_holders_and_what_they_do_already_counts():
    assert assign_owners([1, 1, 1], [(1, 2), (1, 2), (0,)], [0, 1, 0]) == [2, 1, 0]


def matrices(slices: list[Slice]) -> list[int]:
    return [matrix for piece in slices for matrix in range(piece.start, piece.stop)]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_plan_holds_every_matrix_once_and_no_batch_is_too_large(monkeypatch, limit):
    monkeypatch.setattr(ownership_module, "batch_elements", lambda device: limit * INNER * HIDDEN)
    gate_up = torch.zeros(NUM_EXPERTS, 2 * INNER, HIDDEN)
    parameters = [TrainedParameter(gate_up, {}, GROUP, num_fused=2) for _ in range(3)]
    rounds = plan_rounds(parameters, World.single("cpu"))
    assert all(one.union is None for one in rounds)
    slices = [piece for one in rounds for piece in one.slices_by_owner[0]]
    for parameter in parameters:
        own = [piece for piece in slices if piece.source is parameter]
        assert sorted(matrices(own)) == list(range(2 * NUM_EXPERTS))
    sizes = [sum(map(len, one.slices_by_owner[0])) for one in rounds]
    assert max(sizes) <= limit
    assert all(size == limit for size in sizes[:-1])


@pytest.mark.parametrize("limit", [1, 100])
def test_all_ranks_make_the_same_plan_of_copies(monkeypatch, limit):
    """Plain tensors on tp ranks are copies: owners are shared out, and nothing is gathered."""
    monkeypatch.setattr(ownership_module, "batch_elements", lambda device: 4 * limit * INNER * HIDDEN)
    layout = Layout(tp=4)
    plans = []
    for rank in range(4):
        router, packed = torch.zeros(HIDDEN, HIDDEN), torch.zeros(NUM_EXPERTS, 2 * INNER, HIDDEN)
        parameters = [TrainedParameter(packed, {}, GROUP, num_fused=2), TrainedParameter(router, {}, GROUP)]
        rounds = plan_rounds(parameters, World(rank, 4, torch.device("cpu"), layout))
        assert all(one.union == "stage" and not one.gathers for one in rounds)
        plans.append(
            [
                [[(parameters.index(p.source), p.start, p.stop) for p in slices] for slices in one.slices_by_owner]
                for one in rounds
            ]
        )
        for owner in range(4):
            assert all(
                sum(map(len, one.slices_by_owner[owner])) <= limit
                and len({piece.matrix_shape for piece in one.slices_by_owner[owner]}) <= 1
                for one in rounds
            )
    assert all(plan == plans[0] for plan in plans)
    everything = [entry for batch in plans[0] for slices in batch for entry in slices]
    covered = sorted((source, matrix) for source, start, stop in everything for matrix in range(start, stop))
    assert covered == [(0, matrix) for matrix in range(2 * NUM_EXPERTS)] + [(1, 0)]


def test_a_parameter_of_four_dims_is_refused():
    tensor = torch.zeros(2, 2, 2, 2)
    with pytest.raises(ValueError, match=r"not a parameter of shape \[2, 2, 2, 2\]"):
        plan_rounds([TrainedParameter(tensor, {}, GROUP)], World.single("cpu"))
