"""Clip gradients by their global norm, for any mixture of plain and sharded tensors.

`torch.nn.utils.clip_grad_norm_` fails on parameters that lie on different meshes. Here each rank adds up the squares of
its local parts, each divided by the number of ranks that hold a copy of the part. The sum over all ranks then counts
every element of every pipeline stage once, in a single collective. All in fp32 and on the device: no synchronisation
with the host.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from glmforge.optim.sharding import local_part, num_copies, splits_of
from glmforge.parallel.world import World

_EPS = 1e-6  # as in torch: keeps a norm of zero from dividing


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float | None, world: World | None = None) -> Tensor:
    """Scale the gradients in place so that their global L2 norm is at most `max_norm`; None only measures.

    Returns the norm before clipping, a scalar fp32 tensor, equal on all ranks. It is inf or nan if a gradient is; then
    clipping spoils all gradients, and the caller is to drop the step. All ranks of `world` call this together; `world`
    may be omitted in a single process. Raises `ValueError` as `glmforge.optim.sharding.splits_of` does.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = global_norm(gradients, world)
    if max_norm is None:
        return norm
    scale = (max_norm / (norm + _EPS)).clamp(max=1.0)
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        by_device[gradient.device].append(local_part(gradient))
    for device, parts in by_device.items():
        torch._foreach_mul_(parts, scale.to(device))
    return norm


@torch.no_grad()
def global_norm(tensors: Iterable[Tensor], world: World | None = None) -> Tensor:
    """The L2 norm of all tensors of all ranks taken together, fp32; 0 for none. Collective over `world`.

    Parts that several ranks hold count once: plain tensors are taken to be equal on all ranks of a pipeline stage.
    """
    parts: dict[tuple[int, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        parts[_copies(tensor, world), tensor.device].append(local_part(tensor))
    device = world.device if world else next((device for _, device in parts), None)
    square = torch.zeros((), device=device)
    for (copies, _), locals_ in parts.items():
        square += (_square_sum(locals_) / copies).to(square.device)
    return (world.sum(square) if world else square).sqrt()


def _copies(tensor: Tensor, world: World | None) -> int:
    if world is not None:
        return num_copies(tensor, world.layout)
    if splits_of(tensor):
        raise ValueError("the norm of sharded gradients needs their world")
    return 1


def _square_sum(tensors: list[Tensor]) -> Tensor:
    if tensors[0].device.type == "cpu":  # whose fp32 norm of 10^7 elements is off by 4e-4: by rows it is not
        rows = [torch.linalg.vector_norm(tensor, dim=-1, dtype=torch.float32) for tensor in tensors]
        return torch.stack([norms.double().square().sum() for norms in rows]).sum().float()
    norms = torch._foreach_norm(tensors, 2, dtype=torch.float32)
    return torch.stack(norms).square().sum()
