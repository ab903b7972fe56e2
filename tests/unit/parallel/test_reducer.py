"""Small vectors of several users come back by name, on one process as summed by others elsewhere."""

import pytest
import torch

from glmforge.parallel.reducer import Reducer, read_together
from glmforge.parallel.world import World


def test_vectors_come_back_by_name_and_once() -> None:
    reducer = Reducer(World.single("cpu"))
    reducer.add("votes", [1.0, 0.0])
    reducer.add("nothing", [])
    reducer.add("seconds", torch.tensor([2.5]))
    sums = reducer.sum()
    assert {name: values.tolist() for name, values in sums.items()} == {
        "votes": [1, 0],
        "nothing": [],
        "seconds": [2.5],
    }
    assert all(values.dtype == torch.float64 for values in sums.values())
    assert reducer.sum() == {}


def test_two_users_do_not_share_a_name() -> None:
    reducer = Reducer(World.single("cpu"))
    reducer.add("votes", [1.0])
    with pytest.raises(AssertionError, match="votes"):
        reducer.add("votes", [1.0])


def test_everything_is_read_in_one_transfer() -> None:
    transfers = []

    def to_host(flat: torch.Tensor) -> list[float]:
        transfers.append(len(flat))
        return flat.tolist()

    read = read_together({"a": torch.tensor(True), "b": torch.tensor([1.5, 2.5], requires_grad=True)}, to_host)
    assert (read, transfers) == ({"a": [1.0], "b": [1.5, 2.5]}, [3])
