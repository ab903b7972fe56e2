"""Which part of a tensor lies on this rank, for any axes it is split over; and the first of its cuts, over tp or ep.

A part is a rectangle: tp or ep cut first, fsdp or efsdp cut the block that is left, so also two cuts of one dim leave
neighbouring rows. DTensor writes such a double cut as `_StridedShard` followed by `Shard`, in mesh order, the inner
cut first; torch knows where the result lies, also for uneven and empty parts.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
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


def shard_parameters(model: nn.Module, mesh: DeviceMesh, dim_of: Callable[[str], int | None]) -> None:
    """Cut parameters of `model` (on the meta device) over the only axis of `mesh`, in place.

    `dim_of(name)` is the dim to cut the parameter along, None leaves it whole.
    """
    for name, parameter in list(model.named_parameters()):
        dim = dim_of(name)
        if dim is not None:
            module, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(module), attribute, _sharded(parameter, mesh, dim))


def _sharded(parameter: nn.Parameter, mesh: DeviceMesh, dim: int) -> nn.Parameter:
    """A DTensor of the parameter's shape, still without values."""
    assert parameter.is_meta, "parameters are cut before they get values"
    shape = list(parameter.shape)
    shape[dim], rest = divmod(shape[dim], mesh.size())
    assert rest == 0, f"{mesh.size()} ranks do not divide dim {dim} of {tuple(parameter.shape)}"
    local = torch.empty(shape, dtype=parameter.dtype, device="meta")
    sharded = DTensor.from_local(local, mesh, [Shard(dim)], run_check=False)
    return nn.Parameter(sharded, requires_grad=parameter.requires_grad)
