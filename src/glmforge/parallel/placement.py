"""Which part of a tensor lies on this rank, whatever axes it is split over.

A part is a rectangle: tp or ep cut first, fsdp or efsdp cut the block that is left, so also two cuts of one dim leave
neighbouring rows. DTensor writes such a double cut as `_StridedShard` followed by `Shard`, in mesh order, the inner
cut first; torch knows where the result lies, also for uneven and empty parts.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@torch.no_grad()
def local_chunk(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """This rank's part of `tensor`, and where it begins in every dim of the whole.

    The part shares memory with `tensor` and records no gradient. A plain tensor is its own part. The offsets of an
    empty part lie within or at the end of the whole, and mean nothing else.
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach(), (0,) * tensor.dim()
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tensor.to_local()
    assert tuple(local.shape) == tuple(sizes), f"{tensor.placements} promise {sizes}, this rank has {local.shape}"
    return local, tuple(offsets)


def local_weight(weight: Tensor) -> Tensor:
    """This rank's part of a parameter inside a forward pass: differentiable, the gradient again a part of the whole."""
    return weight.to_local() if isinstance(weight, DTensor) else weight
