"""A stand-in for the package `deep_ep` on gloo ranks, for tests of the adapter where there is no GPU.

The signatures are those of `deep_ep.Buffer` in DeepEP 2.1.0 (`deep_ep/buffers/legacy.py`; 1.2.1 lacks `enable_shrink`
only). Emulated are the kernels' results (`csrc/kernels/legacy`):

- a token goes once to each rank that holds one of its choices; tokens lie by sender, then in the sender's order;
- choices arrive as numbers among the receiver's experts, -1 with a weight of zero where they are not its own;
- `combine` adds what the ranks send back, without weights, in float32 or better, and the choices' weights too;
- a handle repeats the layout of its dispatch; choices and weights do not go along then;
- with `async_finish` the results are there after `event.current_stream_wait()`, until then they are NaN or nonsense;
- what it does is not seen by dispatch modes, nor are its reads by `helpers.host_waits`: they are the library's;
- what the C++ code asserts of types, shapes and contiguity, but for bf16: here any floating type is added up.

Not emulated: fp8, `num_worst_tokens`, `expert_alignment`, biases, several nodes, the contents of a handle.
"""

import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

Handle = tuple[Any, ...]


class EventOverlap:
    """Holds what is still to be written."""

    def __init__(self, event: Callable[[], None] | None = None) -> None:
        self.event = event

    def current_stream_wait(self) -> None:
        assert self.event is not None
        self.event()


class Config:
    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 128 * hidden_bytes * num_ranks

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0


class Buffer:
    num_layouts = 0
    """Dispatches that made the host wait."""
    num_repeated = 0

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        assert num_nvl_bytes > 0
        self.group, self.group_size, self.rank = group, group.size(), group.rank()

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        assert num_ranks in (2, 4, 8), f"Unsupported number of EP ranks: {num_ranks}"
        return Config()

    get_combine_config = get_dispatch_config

    @_disable_current_modes()
    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventOverlap]:
        assert all((topk_idx.dim() == 2, topk_idx.is_contiguous(), topk_idx.dtype == torch.int64))
        assert ((topk_idx >= -1) & (topk_idx < num_experts)).all()
        num_local = num_experts // self.group_size
        ranks = torch.where(topk_idx < 0, -1, topk_idx // num_local)
        in_rank = (ranks.unsqueeze(-1) == torch.arange(self.group_size)).any(1)
        per_expert = (topk_idx.unsqueeze(-1) == torch.arange(num_experts)).sum((0, 1), dtype=torch.int32)
        return in_rank.sum(0, dtype=torch.int32), None, per_expert, in_rank, EventOverlap()

    @_disable_current_modes()
    def dispatch(
        self,
        x: Tensor,
        handle: Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, list[int] | None, Handle | None, EventOverlap]:
        assert all((expert_alignment == 1, num_worst_tokens == 0))
        assert all((x.dim() == 2, x.is_contiguous(), x.shape[1] * x.element_size() % 16 == 0))
        if handle is not None:
            assert all((topk_idx is None, topk_weights is None))
            Buffer.num_repeated += 1
            (received,), event = self._finish([self._sent(x, handle)], async_finish)
            return received, None, None, None, None, event
        assert num_tokens_per_rank is not None
        assert num_tokens_per_expert is not None
        assert is_token_in_rank is not None
        assert topk_idx is not None
        assert topk_weights is not None
        assert all((topk_idx.is_contiguous(), topk_weights.is_contiguous(), topk_weights.dtype == torch.float32))
        assert all((topk_idx.shape == topk_weights.shape, len(topk_idx) == len(x) == len(is_token_in_rank)))
        Buffer.num_layouts += 1
        each_one = [1] * self.group_size
        to_rank = [int(count) for count in num_tokens_per_rank]
        from_rank = [int(count) for count in self._exchanged(num_tokens_per_rank, each_one, each_one)]
        made: Handle = (is_token_in_rank, to_rank, from_rank)
        num_local = len(num_tokens_per_expert) // self.group_size
        experts = self._sent(topk_idx, made) - self.rank * num_local
        is_here = (experts >= 0) & (experts < num_local)
        weights = torch.where(is_here, self._sent(topk_weights, made), 0.0)
        experts = torch.where(is_here, experts, -1)
        counts = [int((experts == expert).sum()) for expert in range(num_local)]
        (received, experts, weights), event = self._finish([self._sent(x, made), experts, weights], async_finish)
        return received, experts, weights, counts, made, event

    @_disable_current_modes()
    def combine(
        self,
        x: Tensor,
        handle: Handle,
        topk_weights: Tensor | None = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        assert all((x.dim() == 2, x.is_contiguous(), len(x) == sum(handle[2])))
        results = [self._added_up(x, handle)]
        if topk_weights is not None:
            assert all((topk_weights.is_contiguous(), topk_weights.dtype == torch.float32, len(topk_weights) == len(x)))
            results.append(self._added_up(topk_weights, handle))
        results, event = self._finish(results, async_finish)
        return results[0], results[1] if topk_weights is not None else None, event

    def _sent(self, x: Tensor, handle: Handle) -> Tensor:
        is_token_in_rank, to_rank, from_rank = handle
        rows = torch.cat([x[is_token_in_rank[:, rank]] for rank in range(self.group_size)])
        return self._exchanged(rows, to_rank, from_rank)

    def _added_up(self, x: Tensor, handle: Handle) -> Tensor:
        is_token_in_rank, to_rank, from_rank = handle
        parts = self._exchanged(x, from_rank, to_rank).split(to_rank)
        total = x.new_zeros(len(is_token_in_rank), x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
        for rank, part in enumerate(parts):
            total[is_token_in_rank[:, rank]] += part
        return total.to(x.dtype)

    def _exchanged(self, x: Tensor, to_rank: list[int], from_rank: list[int]) -> Tensor:
        received = x.new_empty(sum(from_rank), *x.shape[1:])
        dist.all_to_all_single(received, x.contiguous(), from_rank, to_rank, group=self.group)
        return received

    def _finish(self, results: list[Tensor], async_finish: bool) -> tuple[list[Tensor], EventOverlap]:
        if not async_finish:
            return results, EventOverlap()
        nonsense = [torch.full_like(x, float("nan") if x.is_floating_point() else 1 << 40) for x in results]

        def arrive() -> None:
            with torch.no_grad():
                for there, result in zip(nonsense, results, strict=True):
                    there.copy_(result)

        return nonsense, EventOverlap(arrive)


def package() -> ModuleType:
    """A module to be found under the name `deep_ep`."""
    module = ModuleType("deep_ep")
    module.__spec__ = importlib.machinery.ModuleSpec("deep_ep", None)
    module.Buffer, module.topk_idx_t = Buffer, torch.int64  # type: ignore[attr-defined]
    return module


def install() -> None:
    """For the life of this process, a rank's."""
    sys.modules["deep_ep"] = package()
