"""Collectives that gradients flow through, on the first dim of a tensor.

Each has the backward that keeps a sum over ranks a sum: gather and reduce-scatter are each other's, an all-to-all is
its own with the sizes exchanged, and the pair (`copy`, `all_reduce`) brackets a region that every rank computes a part
of. They are functional operators (`_c10d_functional`), not writes into a buffer, so that recompute policies and
torch.compile see them as ordinary operations and an observer can count their bytes.

A group of None is one of a single rank: the functions return their input.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None

_ops = torch.ops._c10d_functional


def all_gather(x: Tensor, group: Group) -> Tensor:
    """[N, ...] of every rank -> [ranks * N, ...]; the gradient is summed over ranks and scattered."""
    return x if group is None else _AllGather.apply(x, group)


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    """[ranks * N, ...] summed over ranks -> this rank's [N, ...]; the gradient is gathered."""
    return x if group is None else _ReduceScatter.apply(x, group)


def copy(x: Tensor, group: Group) -> Tensor:
    """The input itself, going into a region of which each rank computes a part: the gradient is summed over ranks."""
    return x if group is None else _Copy.apply(x, group)


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """Sum over ranks, leaving such a region: every rank already has the whole gradient."""
    return x if group is None else _AllReduce.apply(x, group)


def split(x: Tensor, group: Group) -> Tensor:
    """This rank's share of rows that all ranks hold alike; the gradients are gathered."""
    return x if group is None else _Split.apply(x, group)


def gather_shares(x: Tensor, group: Group) -> Tensor:
    """The inverse of `split`: rows that all ranks go on with alike, so each takes its own share of the gradient."""
    return x if group is None else _GatherShares.apply(x, group)


class Exchange:
    """One all-to-all of rows: `input_splits[r]` of them to rank r of the group, `output_splits[r]` from it.

    `finish(start(x))` are the rows received; what is computed between the two runs beside the exchange. So it does in
    the backward pass: the backward of `finish` starts the gradient's exchange, that of `start` waits for it.
    """

    def __init__(self, group: Group, output_splits: Sequence[int], input_splits: Sequence[int]) -> None:
        self.group, self.output_splits, self.input_splits = group, list(output_splits), list(input_splits)
        self.gradient_on_its_way: Tensor | None = None

    def start(self, x: Tensor) -> Tensor:
        """Rows that are not to be read before `finish` has had them."""
        return x if self.group is None else _Start.apply(x, self)

    def finish(self, y: Tensor) -> Tensor:
        """The rows received."""
        return y if self.group is None else _Finish.apply(y, self)


def exchange(x: Tensor, group: Group, output_splits: Sequence[int], input_splits: Sequence[int]) -> Tensor:
    """An `Exchange` with nothing between its two ends."""
    both = Exchange(group, output_splits, input_splits)
    return both.finish(both.start(x))


def _gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return _ops.wait_tensor(_ops.all_gather_into_tensor(x.contiguous(), group.size(), group.group_name))


def _scattered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return _ops.wait_tensor(_ops.reduce_scatter_tensor(x.contiguous(), "sum", group.size(), group.group_name))


def _reduced(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return _ops.wait_tensor(_ops.all_reduce(x.contiguous(), "sum", group.group_name))


def _sent(x: Tensor, group: dist.ProcessGroup, output_splits: list[int], input_splits: list[int]) -> Tensor:
    return _ops.all_to_all_single(x.contiguous(), output_splits, input_splits, group.group_name)


def _share(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    # A copy: a view would keep the whole tensor alive.
    return x.chunk(group.size())[group.rank()].clone()


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _scattered(grad, ctx.group), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scattered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad, ctx.group), None


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _reduced(grad, ctx.group), None


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _share(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad, ctx.group), None


class _GatherShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _share(grad, ctx.group), None


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        assert exchange.group is not None
        return _sent(x, exchange.group, exchange.output_splits, exchange.input_splits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # `grad` is what _Finish was given: autograd demands a gradient of its input's shape. The rows are elsewhere.
        sent_back, ctx.exchange.gradient_on_its_way = ctx.exchange.gradient_on_its_way, None
        return _ops.wait_tensor(sent_back), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return _ops.wait_tensor(y).view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        exchange = ctx.exchange
        exchange.gradient_on_its_way = _sent(grad, exchange.group, exchange.input_splits, exchange.output_splits)
        return grad, None
