"""Expert parallelism over the library DeepEP (deepseek-ai/DeepEP), `parallel.ep_dispatch: deepep`.

DeepEP's kernels move tokens over NVLink and RDMA without NCCL. A token goes once to each rank that holds any of its
experts, where the all-to-all of `glmforge.parallel.expert` sends it once per expert; a rank gets it with the numbers
and weights of those of its choices that are here. It is copied into expert order, the experts multiply their rows by
the weights, the results are summed on the rank that made them, and the sums go back, where DeepEP adds up what comes
from several ranks, in float32. Each exchange is the other one's gradient.

`Buffer.dispatch` makes the host wait for the number of tokens to come. A layer that is computed again sends its tokens
by the layout of the first time, without that wait. Every exchange is started and waited for apart: the shared expert
runs while tokens are on their way, in both passes, and with `parallel.ep_overlap` the other half of the micro-batch.

The interface is that of `deep_ep.Buffer` in DeepEP 1.2.1 and 2.1.0, the same in what is used here.

Shapes: T tokens of this rank, M tokens received, D hidden_size, K experts per token, E experts, e = E / ep experts of
this rank, N rows in expert order.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.kernels.dispatch import Routing, combine, permute, row_weights, sort_by_expert
from glmforge.model.dispatch import Choices, ExpertRows
from glmforge.parallel.recompute import remembered
from glmforge.parallel.world import World

PACKAGE = "deep_ep"
_NVLINK_RANKS = 8
_MAX_HIDDEN = 8176
"""A half row of bf16 and a barrier share the 8 KiB that a warp has for its copies."""
_MAX_CHOICES = 32
_BYTES = 2


def deepep_dispatcher(config: RunConfig, world: World) -> "DeepEPDispatcher":
    """One dispatcher, and one communication buffer, for all layers. Collective over the ep ranks.

    Raises `ConfigError` where DeepEP cannot be used.
    """
    check_usable(config, world.device)
    deep_ep = importlib.import_module(PACKAGE)
    group = world.meshes["expert"]["ep"].get_group()
    try:
        configs = deep_ep.Buffer.get_dispatch_config(group.size()), deep_ep.Buffer.get_combine_config(group.size())
    except AssertionError:  # its table has no such size
        raise ConfigError(
            f"parallel.ep: {group.size()} is not supported by DeepEP (2, 4, 8, 16, 24, 32, ...); set another, or "
            "set parallel.ep_dispatch to all_to_all"
        ) from None
    row = config.model.hidden_size * _BYTES
    buffer = deep_ep.Buffer(
        group,
        num_nvl_bytes=max(config_of_one.get_nvl_buffer_size_hint(row, group.size()) for config_of_one in configs),
        num_rdma_bytes=max(config_of_one.get_rdma_buffer_size_hint(row, group.size()) for config_of_one in configs),
    )
    return DeepEPDispatcher(buffer, getattr(deep_ep, "topk_idx_t", torch.int64))


def check_usable(config: RunConfig, device: torch.device) -> None:
    """Raises `ConfigError` for a device, an installation or a model that DeepEP does not work with."""
    for obstacle in _obstacles(config, device):
        raise ConfigError(f"{obstacle} parallel.ep_dispatch to all_to_all")


def _obstacles(config: RunConfig, device: torch.device) -> Iterator[str]:
    if device.type != "cuda":
        yield f"parallel.ep_dispatch: 'deepep' needs CUDA devices; this run's, like a dry run's, is {device}; set"
    if importlib.util.find_spec(PACKAGE) is None:
        yield f"parallel.ep_dispatch: 'deepep' needs the package '{PACKAGE}', which is not installed; set"
    if config.precision.compute != "bf16":
        yield f"precision.compute: DeepEP supports bf16 only, not {config.precision.compute}; set bf16, or"
    model, ep = config.model, config.parallel.ep
    multiple = 16 if ep <= _NVLINK_RANKS else 256
    if model.hidden_size % multiple or model.hidden_size > _MAX_HIDDEN:
        wanted = f"a multiple of {multiple} up to {_MAX_HIDDEN}"
        yield f"model.hidden_size: {model.hidden_size}, but DeepEP needs {wanted} with {ep} ranks; change it, or set"
    if model.num_experts_per_tok > _MAX_CHOICES:
        choices = f"{model.num_experts_per_tok}, but DeepEP supports at most {_MAX_CHOICES}"
        yield f"model.num_experts_per_tok: {choices}; lower it, or set"


@dataclass
class _Layout:
    """Which tokens go where, as DeepEP's first dispatch found it; empty until then."""

    handle: tuple[Any, ...] | None = None
    experts_MK: Tensor | None = None
    weights_MK: Tensor | None = None
    num_rows: int = 0


class _Transfer:
    """The tokens of one call, to their experts and back: what both exchanges and their gradients share."""

    def __init__(self, buffer: Any, layout: _Layout) -> None:
        self.buffer, self.layout = buffer, layout
        self.arrival: Any = None
        self.routing: Routing | None = None
        self.gradients: tuple[Tensor, Tensor, Any] | None = None
        self.output_gradient: tuple[Tensor, Any] | None = None

    def send(self, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
        """Send the tokens; what it gives is not to be read before `arrival`."""
        layout, x_TD = self.layout, x_TD.contiguous()
        if layout.handle is not None:
            assert layout.weights_MK is not None
            x_MD, *_, self.arrival = self.buffer.dispatch(x_TD, handle=layout.handle, async_finish=True)
            return x_MD, layout.weights_MK.detach()
        per_rank, per_rdma_rank, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(experts_TK, num_experts)
        x_MD, layout.experts_MK, weights_MK, counts, layout.handle, self.arrival = self.buffer.dispatch(
            x_TD,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=experts_TK,
            topk_weights=weights_TK.float().contiguous(),
            async_finish=True,
        )
        layout.weights_MK, layout.num_rows = weights_MK.detach(), sum(counts)
        return x_MD, weights_MK


class DeepEPDispatcher:
    """Brings tokens to the experts of all ranks of `buffer`'s group, the same number on each.

    `index_type` is the type in which DeepEP was built to take the numbers of experts.
    """

    needs_weights = True

    def __init__(self, buffer: Any, index_type: torch.dtype = torch.int64) -> None:
        self.buffer, self.index_type = buffer, index_type

    def dispatch(self, x_TD: Tensor, choices: Choices, *, implementation: str = "plain") -> ExpertRows:
        """Weights go along."""
        experts_TK, num_experts, may_drop, weights_TK = choices
        assert weights_TK is not None, "send_back only adds"
        if may_drop:
            experts_TK = experts_TK.masked_fill(experts_TK == num_experts, -1)
        experts_TK = experts_TK.to(self.index_type).contiguous()
        transfer = _Transfer(self.buffer, remembered(_Layout))
        on_the_way = _Send.apply(x_TD, weights_TK, experts_TK, num_experts, transfer)
        num_local = num_experts // self.buffer.group_size

        def arrive(x_MD: Tensor, weights_MK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            x_MD, weights_MK = _Receive.apply(x_MD, weights_MK, transfer)
            here_MK = transfer.layout.experts_MK
            assert here_MK is not None, "set when tokens are sent"
            # -1 are choices that other ranks hold
            here_MK = here_MK.long().masked_fill(here_MK < 0, num_local)
            routing = sort_by_expert(here_MK, num_local, implementation=implementation)
            transfer.routing, num_rows = routing, transfer.layout.num_rows
            weights_N = row_weights(weights_MK, routing)[:num_rows]
            return permute(x_MD, routing, num_rows), routing.counts_E, weights_N

        return ExpertRows(on_the_way, arrive, transfer, weighted=True)

    def send_back(self, y_ND: Tensor, weights_TK: Tensor | None, rows: ExpertRows) -> Callable[[], Tensor]:
        transfer: _Transfer = rows.handle
        # The transfer lives until the backward pass, which does not ask for it.
        routing, transfer.routing = transfer.routing, None
        assert weights_TK is None, "the experts have applied them"
        assert routing is not None, "rows have arrived"
        on_the_way_TD = _SendBack.apply(combine(y_ND, None, routing), transfer)
        return lambda: _ReceiveBack.apply(on_the_way_TD, transfer)


class _Send(torch.autograd.Function):
    """`_Receive` has begun to send the gradients back; here they are waited for."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor, num_experts: int, transfer: _Transfer
    ) -> tuple[Tensor, Tensor]:
        ctx.transfer, ctx.weights_dtype = transfer, weights_TK.dtype
        return transfer.send(x_TD, weights_TK, experts_TK, num_experts)

    @staticmethod
    def backward(ctx: Any, x_grad_MD: Tensor, weights_grad_MK: Tensor) -> tuple[Tensor | None, ...]:
        # What is given are the shapes that autograd demands, see _Receive.
        x_grad_TD, weights_grad_TK, arrival = ctx.transfer.gradients
        ctx.transfer.gradients = None
        arrival.current_stream_wait()
        return x_grad_TD, weights_grad_TK.to(ctx.weights_dtype), None, None, None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, weights_MK: Tensor, transfer: _Transfer) -> tuple[Tensor, Tensor]:
        ctx.transfer = transfer
        transfer.arrival.current_stream_wait()
        return x_MD.view_as(x_MD), weights_MK.view_as(weights_MK)

    @staticmethod
    def backward(ctx: Any, x_grad_MD: Tensor, weights_grad_MK: Tensor) -> tuple[Tensor, Tensor, None]:
        transfer: _Transfer = ctx.transfer
        transfer.gradients = transfer.buffer.combine(
            x_grad_MD.contiguous(),
            transfer.layout.handle,
            topk_weights=weights_grad_MK.contiguous(),
            async_finish=True,
        )
        return x_grad_MD, weights_grad_MK, None


class _SendBack(torch.autograd.Function):
    """`_ReceiveBack` has begun to send the gradients to the experts; here they are waited for."""

    @staticmethod
    def forward(ctx: Any, y_MD: Tensor, transfer: _Transfer) -> Tensor:
        ctx.transfer = transfer
        y_TD: Tensor
        y_TD, _, transfer.arrival = transfer.buffer.combine(
            y_MD.contiguous(), transfer.layout.handle, async_finish=True
        )
        return y_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None]:
        grad_MD, arrival = ctx.transfer.output_gradient
        ctx.transfer.output_gradient = None
        arrival.current_stream_wait()
        return grad_MD, None


class _ReceiveBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_TD: Tensor, transfer: _Transfer) -> Tensor:
        ctx.transfer = transfer
        transfer.arrival.current_stream_wait()
        return y_TD.view_as(y_TD)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None]:
        transfer: _Transfer = ctx.transfer
        grad_MD, *_, arrival = transfer.buffer.dispatch(
            grad_TD.contiguous(), handle=transfer.layout.handle, async_finish=True
        )
        transfer.output_gradient = grad_MD, arrival
        return grad_TD, None
