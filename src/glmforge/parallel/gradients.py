"""Gradients that are whole on no rank: sums over the axes that the table of parameters names.

Where ranks hold the same part of a parameter and each uses it for work of its own, each gets a part of the gradient.
Over the data axes FSDP sums those; what is left is what the table says. Without adapters that is tp alone: the router
and the QK-norms, whose ranks have other tokens and heads, and under sequence parallelism all that tp does not cut.
Forgetting the QK-norms is a famous mistake: their weights are whole, but each rank norms its own heads only.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from glmforge.config.parameters import Axis, ParameterTable
from glmforge.model.placement import local
from glmforge.parallel.world import World


@torch.no_grad()
def sum_partial_gradients(
    parameters: Iterable[tuple[str, nn.Parameter]], table: ParameterTable, world: World, *, sequence_parallel: bool
) -> None:
    """Make the gradients of `parameters` whole, in place; one collective per axis for all that are to be summed alike.

    `parameters` are those of this rank by name. All ranks call this together.
    """
    by_axes: dict[tuple[Axis, ...], list[Tensor]] = {}
    for name, parameter in parameters:
        partial = table[name].partial_axes(sequence_parallel=sequence_parallel)
        axes = tuple(axis for axis in partial if world.axis_size(axis) > 1)
        if axes and parameter.grad is not None:
            by_axes.setdefault(axes, []).append(local(parameter.grad))
    for axes, gradients in by_axes.items():
        _sum(gradients, axes, world)


def _sum(gradients: list[Tensor], axes: tuple[Axis, ...], world: World) -> None:
    flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
    world.sum(flat, *axes)
    for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))
