"""Which storages live at every moment of a step, and what they are for.

A storage is seen when an operator first returns a tensor on it, and gone when Python lets go of it, as the allocator of
a GPU would see it. It works alike on real and on fake tensors, so a dry run can be held against a real one. FSDP frees
and refills gathered weights by resizing storages, which no dispatcher sees: `UntypedStorage.resize_` is wrapped while
the tracker is active, as torch's own `MemTracker` does. When DTensor sees an operator for the first time it learns
the result's placement on tensors without memory but of the global shape, which are not to be counted: its method for
that is wrapped as well. What lives inside one operator (a kernel's workspace) is not seen.

Nothing is kept while tracking but a log of births, deaths and resizings; purposes are given to storages afterwards,
when it is known what has become of them (`glmforge.dryrun.timeline`).
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from glmforge.plan.memory.purposes import Purpose


class Storage:
    """A storage that was seen: its bytes now, and what it is for as far as that is known yet."""

    __slots__ = ("purpose", "size")

    def __init__(self) -> None:
        self.purpose = Purpose.WORKING
        self.size = 0


class MemoryTracker(TorchDispatchMode):
    """Logs, while it is entered, the storages that operators make. Enter it inside a FakeTensorMode, not around it."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Storage, int]] = []
        self._storages: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._is_paused = self._is_over = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(_wrapped(torch.UntypedStorage, "resize_", self._around_resize))
            stack.enter_context(_wrapped(ShardingPropagator, "_propagate_tensor_meta_non_cached", self._pause_during))
            self._wrappers = stack.pop_all()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._wrappers.close()
        self._is_over = True  # what dies from now on is of no interest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # comes back as operators on local tensors
        result = func(*args, **(kwargs or {}))
        if self._is_paused:
            return result
        if isinstance(result, Tensor):
            self._see(result)
        elif result is not None:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._see(leaf)
        return result

    def give_purpose(self, tensors: Iterable[Tensor], purpose: Purpose) -> None:
        """Tell what the storages of these tensors are for; the local parts of sharded ones."""
        for tensor in tensors:
            seen = self._storages.get(_local(tensor).untyped_storage())
            if seen is not None:
                seen.purpose = purpose

    def bytes_of(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of the storages behind these tensors, each once."""
        storages = {id(s): s for s in (_local(tensor).untyped_storage() for tensor in tensors)}
        return sum(storage.nbytes() for storage in storages.values())

    def _see(self, tensor: Tensor) -> None:
        if isinstance(tensor, DTensor) or tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        seen = self._storages.get(storage)
        if seen is None:
            seen = self._storages[storage] = Storage()
            weakref.finalize(storage, self._change, seen, 0).atexit = False
        size = storage.nbytes()
        if size != seen.size:
            self._change(seen, size)

    def _around_resize(self, resize: Callable[..., Any], storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        seen = self._storages.get(storage)
        if seen is not None:
            seen.purpose = Purpose.GATHERED
            self._change(seen, storage.nbytes())
        return result

    def _pause_during(self, propagate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, self._is_paused = self._is_paused, True
        try:
            return propagate(*args, **kwargs)
        finally:
            self._is_paused = before

    def _change(self, seen: Storage, size: int) -> None:
        if not self._is_over and size != seen.size:
            self.log.append((seen, size - seen.size))
            seen.size = size


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


@contextmanager
def _wrapped(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Let `around(original, self, ...)` stand for a method of a class."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, original)
