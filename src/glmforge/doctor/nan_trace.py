"""Which operation of a forward and backward pass made the first value that is not finite.

Every operation that torch dispatches is looked at, forward and backward: one with a non-finite result of finite
tensors is where it began. (`detect_anomaly` sees NaN alone, in the backward pass alone; from it comes which line of
the forward an operation of the backward pass belongs to.) What a kernel outside torch writes is seen at the next
operation that reads it, as not finite already. Infinities that were written on purpose, as into a mask, come from an
infinite scalar, or are not in what a module returns.

Shapes: B rows of S tokens of a micro-batch; what modules pass on is [B, S, ...] or [B * S, ...].
"""

import bisect
import math
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import glmforge

_PACKAGE, _OWN = str(Path(glmforge.__file__).parent), str(Path(__file__).parent)
_UNWRITTEN = ("aten::empty", "aten::new_empty", "aten::resize", "aten::_unsafe_view", "aten::detach", "aten::alias")
"""Their results are not theirs: memory as it was, or a view."""
_MOST = 1000


@dataclass(frozen=True)
class Origin:
    """`module` made a non-finite value by `operation`, from finite values if `is_first`; `line` is of the forward."""

    module: str
    operation: str
    backward: bool
    line: str
    micro_batch: int
    token: tuple[int, int] | None
    """Row of the micro-batch and position in it, where the result's shape tells."""


def is_finite(tensor: Tensor) -> bool:
    """Whether all values are; True for integers."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(torch.isfinite(tensor.float() if tensor.element_size() == 1 else tensor).all())


class NonFiniteTrace(TorchDispatchMode):
    """Use it as a context manager around forward and backward, then ask for `origin`.

    Args:
        names: module -> its name; the first is the whole model, whose calls count the micro-batches.
        shape: (B, S).
    """

    def __init__(self, names: dict[nn.Module, str], shape: tuple[int, int]) -> None:
        super().__init__()
        self._names, self._shape = names, shape
        self._root = next(iter(names))
        self._stack: list[str] = []
        self._sequence: list[int] = []
        self._within: list[str] = []
        self._made: list[Origin] = []
        self._micro_batch = -1
        self._output: tuple[str, int, tuple[int, int] | None, int] | None = None
        """The first module with a non-finite output, the origins by then, the token, the micro-batch."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The trace with all that it needs switched on."""
        before = nn.modules.module.register_module_forward_pre_hook(self._enter)
        after = nn.modules.module.register_module_forward_hook(self._leave)
        with ExitStack() as stack:
            stack.callback(before.remove)
            stack.callback(after.remove)
            stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
            stack.enter_context(self)
            yield

    def origin(self, *, backward: bool) -> Origin | None:
        """Where it began, in the pass that is known to have begun it; None if no operation was seen to."""
        made = [each for each in self._made if each.backward == backward]
        if backward or self._output is None:
            return made[0] if made else None
        module, seen, token, micro_batch = self._output
        made = [each for each in self._made[:seen] if not each.backward]
        inside = [each for each in made if each.module == module or each.module.startswith(f"{module}.")]
        found = (inside or made[-1:] or [Origin(module, "not an operation of torch", False, "", micro_batch, None)])[0]
        return Origin(found.module, found.operation, False, found.line, micro_batch, token or found.token)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if len(self._made) < _MOST and not func.name().startswith(_UNWRITTEN):
            results = [each for each in tree_leaves(result) if type(each) is Tensor]
            wrong = next((each for each in results if not is_finite(each)), None)
            if wrong is not None and self._were_finite((args, kwargs or {}), results):
                self._note(func.name().removeprefix("aten::"), wrong)
        return result

    def _were_finite(self, given: object, results: list[Tensor]) -> bool:
        for each in tree_leaves(given):
            if isinstance(each, float) and not math.isfinite(each):
                return False
            if isinstance(each, Tensor) and not any(each is result for result in results) and not is_finite(each):
                return False
        return True

    def _note(self, operation: str, result: Tensor) -> None:
        node = torch._C._current_autograd_node()
        if node is None:
            module, line = (
                self._stack[-1] if self._stack else "",
                _line(traceback.format_list(traceback.extract_stack())),
            )
        else:
            place = bisect.bisect_right(self._sequence, node._sequence_nr()) - 1
            module = self._within[place] if place >= 0 else ""
            line, operation = (
                _line(cast("dict[str, Any]", node.metadata).get("traceback_", [])),
                f"{node.name()} ({operation})",
            )
        self._made.append(Origin(module, operation, node is not None, line, self._micro_batch, self._token_of(result)))

    def _enter(self, module: nn.Module, given: object) -> None:
        if module is self._root and torch._C._current_autograd_node() is None:
            self._micro_batch += 1
        self._stack.append(self._names.get(module, self._stack[-1] if self._stack else ""))
        self._mark()

    def _leave(self, module: nn.Module, given: object, output: object) -> None:
        name = self._stack.pop()
        self._mark()
        if self._output is None and torch._C._current_autograd_node() is None:
            for each in tree_leaves(output):
                if isinstance(each, Tensor) and not is_finite(each):
                    self._output = (name, len(self._made), self._token_of(each), self._micro_batch)
                    return

    def _mark(self) -> None:
        """Nodes of autograd are numbered in the order of the forward: what follows belongs to the module on top."""
        self._sequence.append(torch.autograd._get_sequence_nr())
        self._within.append(self._stack[-1] if self._stack else "")

    def _token_of(self, values: Tensor) -> tuple[int, int] | None:
        rows, length = self._shape
        flat = values.ndim >= 1 and values.shape[0] == rows * length
        if not flat and values.shape[:2] != (rows, length):
            return None
        of_tokens = torch.isfinite(values.reshape(rows * length, -1)).all(1).logical_not()
        first = int(of_tokens.int().argmax())
        return first // length, first % length


def _line(frames: list[str]) -> str:
    """The innermost frame of a stack that is in the package, as 'model/attention.py:120 in forward'."""
    for frame in reversed(frames):
        place = frame.strip().split("\n")[0]
        file = place.partition('"')[2].partition('"')[0]
        if file.startswith(_PACKAGE) and not file.startswith(_OWN):
            number, _, function = place.partition(", line ")[2].partition(", in ")
            return f"{Path(file).relative_to(_PACKAGE)}:{number} in {function}"
    return ""
