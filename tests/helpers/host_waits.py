"""What makes the host wait for a GPU, counted without one.

    with HostWaits() as waits:
        step()
    print(waits)  # [("tolist", "expert.py:46"), ...]

`torch.cuda.set_sync_debug_mode` needs a GPU. What it would find is seen here on a CPU: numbers that are read (`tolist`,
`item`, `bool`, ...) and operators whose result's size depends on values (`nonzero`, a boolean index, ...), for which
CUDA waits inside. With tensors on the meta device in the place of the GPU, copies between host and device are seen as
well: torch waits for each that is not asked to be `non_blocking`. What the CPU's own kernels read inside a custom
operator is not counted: on a GPU others run.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_SIZED_BY_VALUES = {
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.bincount.default,
    _aten._unique2.default,
    _aten.unique_consecutive.default,
    _aten.unique_dim.default,
    _aten._local_scalar_dense.default,
    _aten.is_nonzero.default,
    _aten.equal.default,
}
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_PACKAGE = f"{Path('src', 'glmforge')}/"


class HostWaits(list[tuple[str, str]]):
    """(what, file:line of the package) of every wait while it is entered."""

    def __enter__(self) -> Self:
        self._patches, self._sizes = ExitStack(), _Sizes(self)
        # Replaced, since a TorchFunctionMode does not see what the backward pass calls. All other ways to read a number
        # pass the dispatcher.
        for name in ("tolist", "numpy"):
            self._patches.enter_context(patch.object(Tensor, name, self._noted_read(getattr(Tensor, name))))
        for name in ("tensor", "as_tensor"):
            self._patches.enter_context(patch.object(torch, name, self._noted_maker(getattr(torch, name))))
        self._sizes.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._sizes.__exit__(*error)
        self._patches.close()

    def _noted_read(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not _in_custom_operator():
                self.note(read.__name__)
            return read(tensor, *args, **kwargs)

        return noted

    def _noted_maker(self, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noted(values: Any, *args: Any, **kwargs: Any) -> Tensor:
            result = make(values, *args, **kwargs)
            if not isinstance(values, Tensor) and result.device.type != "cpu":
                self.note(make.__name__)
            return result

        return noted

    def note(self, what: str) -> None:
        self.append((what, _place()))


class _Sizes(TorchDispatchMode):
    def __init__(self, waits: HostWaits) -> None:
        super().__init__()
        self.waits = waits

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in _SIZED_BY_VALUES or _indexes_by_booleans(func, args) or _blocks_on_a_copy(func, args, kwargs, out):
            self.waits.note(func.name().removeprefix("aten::"))
        return out


def _indexes_by_booleans(func: Any, args: Any) -> bool:
    if func not in {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}:
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _blocks_on_a_copy(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    if func not in _COPIES or not isinstance(out, Tensor):
        return False
    is_copy = func is _aten.copy_.default
    source = args[1] if is_copy else args[0]
    if (source.device.type == "cpu") == (out.device.type == "cpu"):
        return False
    blocking = not (args[2] if is_copy and len(args) > 2 else kwargs.get("non_blocking", False))
    return blocking


def _in_custom_operator() -> bool:
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_filename.endswith("_library/custom_ops.py"):
            return True
    return False


def _place() -> str:
    """The innermost line of the package that is being run."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if _PACKAGE in frame.f_code.co_filename:
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return "elsewhere"
