"""What stands in for CUDA graphs on a machine without a GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def record_operations(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """As `kernels.cuda_graph.record`: replays run the same operations on the same memory with the same numbers.

    Recording runs them once, so the first call of the result does nothing.
    """
    operations = _Operations()
    with operations:
        result = function()
    waiting = [True]

    def replay() -> Tensor:
        if waiting:
            waiting.clear()
        else:
            operations.run()
        return result

    return replay


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number is read on the host"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def run(self) -> None:
        for func, args, kwargs, result in self.calls:
            for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
