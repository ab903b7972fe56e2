"""Activation offload: what the backward pass of a layer needs waits in host memory meanwhile.

Where recomputation pays with FLOPs, this pays with transfers: 2 bytes there and back for each bf16 activation, over a
link of some 50 GB/s to a GPU. With `recompute: full` only the inputs of layers are left to be sent. Whatever autograd
saves in a layer goes through hooks (`torch.autograd.graph.saved_tensors_hooks`); torch's own `save_on_cpu` would send
the weights as well, a tensor as often as it is saved, on the stream that computes, and bring each back when it is
already needed. Here parameters and small tensors stay, a tensor is sent once, copies run on a stream of their own, and
a layer's tensors are fetched while the layer above it is still differentiated.

On a CPU the copies are plain ones: nothing is gained, and everything but streams is the same code.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from glmforge.kernels.target import kernel_device
from glmforge.model.placement import local
from glmforge.model.transformer import GlmMoe

MIN_BYTES = 1 << 20
"""Smaller tensors stay where they are: a transfer has a latency of some microseconds."""


def apply_offload(model: GlmMoe, device: torch.device, *, min_bytes: int = MIN_BYTES) -> None:
    """Let every layer of `model` save what it needs in host memory, in place. To be called after `apply_recompute`."""
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    below: list[weakref.ref[_Call]] = []
    layers: Sequence[nn.Module] = model.layers
    for index, layer in enumerate(layers):
        layer.forward = functools.partial(_offloaded, layer, layer.forward, index == 0, below, stream, min_bytes)


def _offloaded(
    layer: nn.Module,
    forward: Callable[..., Any],
    is_first: bool,
    below: list["weakref.ref[_Call]"],
    stream: "torch.cuda.Stream | None",
    min_bytes: int,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """`below` holds the call of the layer below in the same forward pass, which is differentiated after this one."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    call = _Call(layer, below[0]() if below and not is_first else None, stream, min_bytes)
    below[:] = [weakref.ref(call)]
    with saved_tensors_hooks(call.pack, call.unpack):
        return forward(*args, **kwargs)


class _Call:
    """One forward pass of a layer, and what it has sent away. Lives as long as autograd's graph needs it."""

    def __init__(
        self, layer: nn.Module, below: "_Call | None", stream: "torch.cuda.Stream | None", min_bytes: int
    ) -> None:
        self.layer, self.stream, self.min_bytes = layer, stream, min_bytes
        self.below = None if below is None else weakref.ref(below)
        self.sent: dict[tuple[Any, ...], tuple[StorageWeakRef, _HostCopy]] = {}
        self.is_fetched = False

    def pack(self, tensor: Tensor) -> "Tensor | _HostCopy":
        is_elsewhere = self.stream is not None and not tensor.is_cuda
        if is_elsewhere or tensor.nbytes < self.min_bytes or self._is_parameter(tensor):
            return tensor
        storage = StorageWeakRef(tensor.untyped_storage())
        key = storage.cdata, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version
        if key not in self.sent:  # the reference keeps the number of a freed storage from being given again
            self.sent[key] = storage, _HostCopy(tensor, self.stream)
        return self.sent[key][1]

    def unpack(self, packed: "Tensor | _HostCopy") -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        self.fetch()
        below = self.below() if self.below else None
        if below is not None and self.stream is not None:
            below.fetch()
        return packed.take()

    def fetch(self) -> None:
        """Begin to bring everything back, which is all needed soon."""
        if not self.is_fetched:
            self.is_fetched = True
            for _, copy in self.sent.values():
                copy.fetch()
            self.sent.clear()

    def _is_parameter(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()._cdata
        return any(local(p).untyped_storage()._cdata == storage for p in self.layer.parameters())


class _HostCopy:
    """A tensor's copy in host memory; with a stream, both ways beside the computation."""

    def __init__(self, tensor: Tensor, stream: "torch.cuda.Stream | None") -> None:
        self.device, self.stream = tensor.device, stream
        self.fetched: Tensor | None = None
        self.arrived: torch.cuda.Event | None = None
        if stream is None:
            # In a dry run the CPU stands for a GPU: what lies on `meta` is not counted as its memory.
            stands_in = kernel_device(tensor.device) != tensor.device.type
            self.host = torch.empty_like(tensor, device="meta" if stands_in else "cpu").copy_(tensor)
            return
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            self.host = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)

    def fetch(self) -> None:
        if self.stream is None:
            is_meta = self.host.is_meta
            self.fetched = torch.empty_like(self.host, device=self.device) if is_meta else self.host
            return
        with torch.cuda.stream(self.stream):
            self.fetched = self.host.to(self.device, non_blocking=True)
            self.arrived = self.stream.record_event()

    def take(self) -> Tensor:
        """The tensor on its device, in order with everything computed from here on."""
        assert self.fetched is not None
        if self.arrived is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(self.arrived)
            self.fetched.record_stream(computing)
        return self.fetched
