"""Which ranks this process is to start: as the command line says, or as the starter's variables do.

Numbers are the job's own: node by node in the order that the supervisor gave. Slurm sorts the nodes of a step by its
own order, so under srun a rank is found by the node's name, and SLURM_PROCID is not looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from glmforge.errors import LaunchError
from glmforge_ops.jobs.ranks.assignment import Assignment

STARTERS = ("srun", "mpirun", "torchrun")


@dataclass(frozen=True)
class Seat:
    """A rank among the others."""

    rank: int
    local_rank: int
    node: int
    """Its place among the assignment's nodes."""


def seats_of_node(assignment: Assignment, node: int) -> list[Seat]:
    """All ranks of a node. Raises `LaunchError` if there is no such node."""
    if not 0 <= node < len(assignment.nodes):
        raise LaunchError(f"--node {node}: the attempt has nodes 0 to {len(assignment.nodes) - 1}")
    count = assignment.ranks_per_node
    return [Seat(node * count + local, local, node) for local in range(count)]


def seat_by(starter: str, assignment: Assignment, environment: Mapping[str, str]) -> Seat:
    """The rank of this process among those that `starter` has started. Raises `LaunchError`."""
    if starter == "srun":
        return _checked(assignment, node_of_slurm(assignment, environment), _number(environment, "SLURM_LOCALID"))
    if starter == "mpirun":
        rank, local = _of_mpi(environment)
    else:
        rank, local = _number(environment, "RANK"), _number(environment, "LOCAL_RANK")
    if rank % assignment.ranks_per_node != local:
        raise LaunchError(
            f"{starter} has made rank {rank} the {local}. of its node, not the {rank % assignment.ranks_per_node}.: "
            f"it has to start {assignment.ranks_per_node} ranks on each node, node by node"
        )
    return _checked(assignment, rank // assignment.ranks_per_node, local)


def node_of_slurm(assignment: Assignment, environment: Mapping[str, str]) -> int:
    """The place of this node among the assignment's."""
    name = environment.get("SLURMD_NODENAME", "")
    if name not in assignment.nodes:
        raise LaunchError(
            f"SLURMD_NODENAME = {name!r} is none of the attempt's nodes ({', '.join(assignment.nodes)}); start it by "
            "srun with --nodelist"
        )
    return assignment.nodes.index(name)


def _of_mpi(environment: Mapping[str, str]) -> tuple[int, int]:
    """Open MPI's numbers; else those of MPICH and its relatives, which share PMI's names."""
    if "OMPI_COMM_WORLD_RANK" in environment:
        return _number(environment, "OMPI_COMM_WORLD_RANK"), _number(environment, "OMPI_COMM_WORLD_LOCAL_RANK")
    return _number(environment, "PMI_RANK"), _number(environment, "MPI_LOCALRANKID")


def _checked(assignment: Assignment, node: int, local: int) -> Seat:
    if not (0 <= node < len(assignment.nodes) and 0 <= local < assignment.ranks_per_node):
        raise LaunchError(
            f"rank {local} of node {node}: the attempt has {len(assignment.nodes)} nodes with "
            f"{assignment.ranks_per_node} ranks each; the starter has started more"
        )
    return Seat(node * assignment.ranks_per_node + local, local, node)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not (text.isdecimal() and text.isascii()):
        raise LaunchError(f"{name} = {text!r} is no number: this is not a process that the starter has started")
    return int(text)
