"""Expert parallelism: each rank of the ep axis holds E / ep of a layer's experts, tokens are sent to them and back.

The ep axis is laid over dp_shard x cp x tp, where all ranks have different tokens, so it costs no ranks of its own. A
rank sorts its rows by expert, tells the others how many rows come for each of their experts, sends them (an all-to-all
of uneven parts), and gets as many results back. The shared expert runs while the rows are sent, in the backward pass as
well. Received rows lie by sender and then by expert; one more permutation puts equal experts next to each other.

Gradients need no factor: a rank's experts see the rows of all ep ranks, so the gradient it computes is already summed
over them, and FSDP sums the rest (efsdp). Dividing by ep, or averaging over data ranks of which ep are already in,
is the well-known bug.

Shapes: T tokens, D hidden_size, E experts, e = E / ep experts of this rank, R ranks of the ep axis, K experts per
token, N rows sent, M rows received.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.config.parameters import ParameterTable
from glmforge.kernels.dispatch import Routing, permute, sort_by_expert
from glmforge.model.dispatch import ExpertRows, combine_rows
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.collectives import Exchange
from glmforge.parallel.placement import shard_parameters
from glmforge.parallel.world import World

Splits = Callable[[Tensor], list[list[int]]]
"""Brings a matrix of row counts [2, R] (sent to, received from each rank) to the host."""


def splits_from_device(counts_2R: Tensor) -> list[list[int]]:
    """The real numbers; waits for the device."""
    splits: list[list[int]] = counts_2R.tolist()
    return splits


@dataclass(frozen=True)
class _Handle:
    """How to bring results back: the sender's order, both permutations of the receiver, the exchange."""

    routing: Routing
    order_M: Tensor
    inverse_M: Tensor
    back: Exchange


class AllToAllDispatcher:
    """Sends rows to the ranks of `group`, R of them with `num_local` experts each."""

    def __init__(self, group: dist.ProcessGroup, splits: Splits = splits_from_device) -> None:
        self.group = group
        self.splits = splits

    def dispatch(self, x_TD: Tensor, experts_TK: Tensor, num_experts: int, *, may_drop: bool) -> ExpertRows:
        routing = sort_by_expert(experts_TK, num_experts)
        sent_Re = routing.counts_E.view(self.group.size(), -1)
        received_Re = _exchanged_counts(sent_Re, self.group)
        sent, received = self.splits(torch.stack((sent_Re.sum(1), received_Re.sum(1))))
        x_ND = permute(x_TD, routing)
        if may_drop:
            x_ND = x_ND[: sum(sent)]
        exchange = Exchange(self.group, output_splits=received, input_splits=sent)
        on_the_way_MD = exchange.start(x_ND)
        order_M = _order_by_expert(received_Re, sum(received))
        inverse_M = torch.empty_like(order_M)
        inverse_M[order_M] = torch.arange(len(order_M), device=order_M.device)

        def arrive() -> Tensor:
            return _Reorder.apply(exchange.finish(on_the_way_MD), order_M, inverse_M)

        handle = _Handle(routing, order_M, inverse_M, Exchange(self.group, output_splits=sent, input_splits=received))
        return ExpertRows(arrive, received_Re.sum(0), handle)

    def combine(self, y_ND: Tensor, weights_TK: Tensor, rows: ExpertRows) -> Tensor:
        handle: _Handle = rows.handle
        y_by_sender_MD = _Reorder.apply(y_ND, handle.inverse_M, handle.order_M)
        y_back_ND = handle.back.finish(handle.back.start(y_by_sender_MD))
        return combine_rows(y_back_ND, weights_TK, handle.routing)


def parallelize_experts(
    model: GlmMoe, world: World, table: ParameterTable, splits: Splits = splits_from_device
) -> None:
    """Give each rank of the ep axis its share of every layer's experts, in place (on the meta device)."""
    if world.axis_size("ep") == 1:
        return
    mesh = world.meshes["expert"]["ep"]
    shard_parameters(model, mesh, lambda name: 0 if table[name].expert else None)
    for moe in model.moe_layers.values():
        moe.experts.dispatcher = AllToAllDispatcher(mesh.get_group(), splits)


def _exchanged_counts(sent_Re: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[R, e]: the rows that each rank sends to each expert of this one."""
    received_Re = torch.empty_like(sent_Re)
    dist.all_to_all_single(received_Re, sent_Re.contiguous(), group=group)
    return received_Re


def _order_by_expert(received_Re: Tensor, num_rows: int) -> Tensor:
    """[M]: of the rows by sender and expert, the order by expert and sender."""
    num_ranks, num_local = received_Re.shape
    experts_Re = torch.arange(num_local, device=received_Re.device).repeat(num_ranks)
    experts_M = experts_Re.repeat_interleave(received_Re.flatten(), output_size=num_rows)
    return experts_M.argsort(stable=True)


class _Reorder(torch.autograd.Function):
    """Rows in another order; the gradient takes the inverse one, again by a gather."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad.index_select(0, inverse), None, None
