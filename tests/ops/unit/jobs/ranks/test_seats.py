"""Which rank a process is, by what each starter says."""

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.ranks.seats import Seat, seat_by, seats_of_node
from helpers.ranks import assignment


@pytest.fixture
def two_by_two() -> Assignment:
    return assignment(["true"], nodes=["b", "a"], ranks_per_node=2)


@pytest.mark.parametrize(
    ("starter", "variables"),
    [
        ("srun", {"SLURMD_NODENAME": "a", "SLURM_LOCALID": "1", "SLURM_PROCID": "1"}),
        ("mpirun", {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}),
        ("mpirun", {"PMI_RANK": "3", "MPI_LOCALRANKID": "1"}),
        ("torchrun", {"RANK": "3", "LOCAL_RANK": "1"}),
    ],
)
def test_the_last_rank_by_each_starter(two_by_two: Assignment, starter: str, variables: dict[str, str]) -> None:
    """Slurm sorts nodes: the task that it calls the second is the last rank of an attempt that names them otherwise."""
    assert seat_by(starter, two_by_two, variables) == Seat(rank=3, local_rank=1, node=1)


def test_all_ranks_of_a_node(two_by_two: Assignment) -> None:
    assert seats_of_node(two_by_two, 1) == [Seat(2, 0, 1), Seat(3, 1, 1)]
    with pytest.raises(LaunchError, match="nodes 0 to 1"):
        seats_of_node(two_by_two, 2)


@pytest.mark.parametrize(
    ("starter", "variables", "words"),
    [
        ("srun", {"SLURMD_NODENAME": "c", "SLURM_LOCALID": "1"}, "none of the attempt's nodes"),
        ("srun", {"SLURMD_NODENAME": "a", "SLURM_LOCALID": "2"}, "has started more"),
        ("srun", {"SLURMD_NODENAME": "a"}, "SLURM_LOCALID = '' is no number"),
        ("mpirun", {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "node by node"),
        ("mpirun", {}, "PMI_RANK = ''"),
        ("torchrun", {"RANK": "4", "LOCAL_RANK": "0"}, "has started more"),
        ("torchrun", {"RANK": "²", "LOCAL_RANK": "0"}, "is no number"),
    ],
)
def test_what_cannot_be(two_by_two: Assignment, starter: str, variables: dict[str, str], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        seat_by(starter, two_by_two, variables)
