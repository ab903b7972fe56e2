"""Expert parallelism: each rank of the ep axis holds E / ep of a layer's experts, tokens are sent to them and back.

The ep axis is laid over dp_shard x cp x tp, where all ranks have different tokens, so it costs no ranks of its own. A
rank sorts its rows by expert, tells the others how many rows come for each of their experts, sends them (an all-to-all
of uneven parts), and gets as many results back. The shared expert runs while the rows are sent, in the backward pass as
well; with `parallel.ep_overlap` the other half of the micro-batch does (`glmforge.model.block`). Received rows lie by
sender and then by expert; one more permutation puts equal experts next to each other.

The host has to know how many rows go where before it can start the exchange (NCCL takes the sizes from it), so it waits
for the device once in every MoE layer's forward pass, of each half by itself. What it waits for is copied while the
rows are put in order, so that the device has work when the host comes back; and a layer that is computed again
remembers the numbers.

Gradients need no factor: a rank's experts see the rows of all ep ranks, so the gradient it computes is already summed
over them, and FSDP sums the rest (efsdp). Dividing by ep, or averaging over data ranks of which ep are already in,
is the well-known bug.

With `parallel.ep_dispatch: deepep` the library DeepEP sends the tokens, see `glmforge.parallel.deepep`.

Shapes: T tokens, D hidden_size, E experts, e = E / ep experts of this rank, R ranks of the ep axis, K experts per
token, N rows sent, M rows received.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.config.parameters import ParameterTable
from glmforge.config.schema import RunConfig
from glmforge.kernels.dispatch import Routing, combine, permute, sort_by_expert
from glmforge.model.dispatch import Choices, Dispatcher, ExpertRows
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.collectives import Exchange
from glmforge.parallel.deepep import deepep_dispatcher
from glmforge.parallel.placement import shard_parameters
from glmforge.parallel.recompute import remembered
from glmforge.parallel.world import World

Splits = Callable[[Tensor], Callable[[], list[list[int]]]]
"""Begins to bring a matrix of row counts [2, R] (sent to, received from each rank) to the host; what it gives waits."""


class SplitsFromDevice:
    """The real numbers. Calling it waits until they have arrived, the first time, and for nothing that was given to the
    device after them."""

    def __init__(self, counts_2R: Tensor) -> None:
        # From a GPU, into page-locked memory.
        self._counts_2R = counts_2R.to("cpu", non_blocking=True)
        self._arrived = torch.cuda.current_stream(counts_2R.device).record_event() if counts_2R.is_cuda else None
        self._splits: list[list[int]] | None = None

    def __call__(self) -> list[list[int]]:
        if self._splits is None:
            if self._arrived is not None:
                self._arrived.synchronize()
            self._splits = self._counts_2R.tolist()
        return self._splits


@dataclass(frozen=True)
class _Handle:
    """How to bring results back: the sender's order, both permutations of the receiver, the exchange."""

    routing: Routing
    order_M: Tensor
    inverse_M: Tensor
    back: Exchange


class AllToAllDispatcher:
    """Sends rows to the ranks of `group`, R of them with `num_local` experts each."""

    needs_weights = False

    def __init__(self, group: dist.ProcessGroup, splits: Splits = SplitsFromDevice) -> None:
        self.group = group
        self.splits = splits

    def dispatch(self, x_TD: Tensor, choices: Choices, *, implementation: str = "plain") -> ExpertRows:
        """Weights are not sent along: `send_back` applies them where the router is."""
        routing = sort_by_expert(choices.experts_TK, choices.num_experts, implementation=implementation)
        sent_Re = routing.counts_E.view(self.group.size(), -1)
        received_Re, splits = remembered(lambda: self._exchanged_counts(sent_Re))
        x_ND = permute(x_TD, routing)
        sent, received = splits()
        if choices.may_drop:
            x_ND = x_ND[: sum(sent)]
        exchange = Exchange(self.group, output_splits=received, input_splits=sent)
        on_the_way_MD = exchange.start(x_ND)
        order_M = _order_by_expert(received_Re, sum(received))
        inverse_M = torch.empty_like(order_M)
        inverse_M[order_M] = torch.arange(len(order_M), device=order_M.device)

        def arrive(on_the_way_MD: Tensor) -> tuple[Tensor, Tensor, None]:
            return _Reorder.apply(exchange.finish(on_the_way_MD), order_M, inverse_M), received_Re.sum(0), None

        handle = _Handle(routing, order_M, inverse_M, Exchange(self.group, output_splits=sent, input_splits=received))
        return ExpertRows((on_the_way_MD,), arrive, handle, weighted=False)

    def _exchanged_counts(self, sent_Re: Tensor) -> tuple[Tensor, Callable[[], list[list[int]]]]:
        """[R, e]: the rows that each rank sends to each expert of this one; and all counts by rank, for the host."""
        received_Re = torch.empty_like(sent_Re)
        dist.all_to_all_single(received_Re, sent_Re.contiguous(), group=self.group)
        return received_Re, self.splits(torch.stack((sent_Re.sum(1), received_Re.sum(1))))

    def send_back(self, y_ND: Tensor, weights_TK: Tensor | None, rows: ExpertRows) -> Callable[[], Tensor]:
        handle: _Handle = rows.handle
        on_the_way_ND = handle.back.start(_Reorder.apply(y_ND, handle.inverse_M, handle.order_M))
        return lambda: combine(handle.back.finish(on_the_way_ND), weights_TK, handle.routing)


def expert_dispatcher(config: RunConfig, world: World, splits: Splits = SplitsFromDevice) -> Dispatcher | None:
    """What all layers bring tokens to the ranks of the ep axis and back with; None without expert parallelism.

    Raises `ConfigError` where `parallel.ep_dispatch` cannot be used.
    """
    if world.axis_size("ep") == 1:
        return None
    if config.parallel.ep_dispatch == "deepep":
        return deepep_dispatcher(config, world)
    return AllToAllDispatcher(world.meshes["expert"]["ep"].get_group(), splits)


def parallelize_experts(model: GlmMoe, world: World, table: ParameterTable, dispatcher: Dispatcher) -> None:
    """Give each rank of the ep axis its share of every layer's experts, in place (on the meta device)."""
    shard_parameters(model, world.meshes["expert"]["ep"], lambda name: 0 if table[name].expert else None)
    for moe in model.moe_layers.values():
        moe.experts.dispatcher = dispatcher


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
