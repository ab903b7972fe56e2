"""What the optimizer needs to know of a sharded tensor: this rank's part, and with whom it shares the rest.

FSDP2 keeps parameters, gradients and our state as DTensors, sharded over dim 0 of one mesh axis and, with
HSDP, replicated over another. The optimizer's arithmetic is on the plain local parts: DTensor's dispatch
costs more than the arithmetic of a small tensor, and would run Newton-Schulz as a chain of collectives.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part, sharing memory with `tensor`, under `no_grad`. A plain tensor is its own part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_groups(tensor: Tensor) -> tuple[dist.ProcessGroup, ...]:
    """The process groups of two or more ranks over which `tensor` is sharded; none if plain or replicated.

    Raises `ValueError` for a gradient that is still to be reduced.
    """
    if not isinstance(tensor, DTensor):
        return ()
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(place.is_partial() for place in placements):
        raise ValueError(f"a tensor placed {placements} holds unreduced partial sums")
    axes = [axis for axis, place in enumerate(placements) if not place.is_replicate()]
    return tuple(mesh.get_group(axis) for axis in axes if mesh.size(axis) > 1)


def row_group(parameter: Tensor) -> dist.ProcessGroup | None:
    """The group that shares the rows of a matrix, None where matrices are whole on a rank.

    Matrices are the last two dims; more dims (experts) come before and may be sharded without cutting a
    matrix. Raises `ValueError` for any layout but FSDP2's: sharded along dim 0 over one mesh axis,
    replicated over others.
    """
    groups = shard_groups(parameter)
    if not isinstance(parameter, DTensor) or not groups:
        return None
    if len(groups) > 1 or not all(place in (Shard(0), Replicate()) for place in parameter.placements):
        raise ValueError(f"Muon needs dim 0 sharded over one mesh axis and got {parameter.placements}")
    return groups[0] if parameter.ndim == 2 else None


def rows_per_rank(num_rows: int, num_ranks: int) -> list[int]:
    """Rows of `num_rows` on each rank, by DTensor's rule: equal blocks, rounded up, the last ones short."""
    block = -(-num_rows // num_ranks)
    return [max(0, min(block, num_rows - rank * block)) for rank in range(num_ranks)]
