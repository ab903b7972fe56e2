"""Clip gradients by their global norm, whatever mixture of plain and sharded tensors they are.

`torch.nn.utils.clip_grad_norm_` fails on parameters that lie on different meshes. Here the squared norms of
the local parts are added up per layout, summed over the mesh axes that shard it (a replicated axis holds
copies, not parts), and then over layouts. All in fp32 and on the device: no synchronisation with the host.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.optim.sharding import local_part, shard_groups

_EPS = 1e-6  # as in torch: keeps a norm of zero from dividing


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale the gradients in place so that their global L2 norm is at most `max_norm`; None only measures.

    Returns the norm before clipping, a scalar fp32 tensor, equal on all ranks. It is inf or nan if a
    gradient is; then clipping spoils all gradients, and the caller is to drop the step. Collective where
    parameters are sharded.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = global_norm(gradients)
    if max_norm is not None and gradients:
        scale = (max_norm / (norm + _EPS)).clamp(max=1.0)
        torch._foreach_mul_([local_part(gradient) for gradient in gradients], scale)
    return norm


@torch.no_grad()
def global_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The L2 norm of all tensors taken together, fp32; 0 for none. Collective where they are sharded."""
    parts: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        parts[shard_groups(tensor)].append(local_part(tensor))
    squares = []
    for groups, locals_ in parts.items():
        square = _square_sum(locals_)
        for group in groups:
            dist.all_reduce(square, group=group)
        squares.append(square)
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def _square_sum(tensors: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(tensors, 2, dtype=torch.float32)
    return torch.stack(norms).square().sum()
