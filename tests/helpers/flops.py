"""torch's count of FLOPs, completed by the operators that it does not know."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import glmforge.kernels.experts  # noqa: F401 - registers the operators below

_aten, _ours = torch.ops.aten, torch.ops.glmforge


def flop_counter() -> FlopCounterMode:
    """Counts matmuls, those of experts too, and attention, while it is entered."""
    mapping = {_aten.addmm_: _addmm, _ours.sliced_mm: _sliced_mm, _ours.sliced_outer: _sliced_outer}
    return FlopCounterMode(display=False, custom_mapping=mapping)


def flops_by_operator(counter: FlopCounterMode) -> dict[str, int]:
    """For example {"aten.mm": 1024}."""
    return {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}


def _addmm(into: Any, left: Any, right: Any, **more: Any) -> int:
    return 2 * math.prod(left) * right[-1]


def _sliced_mm(x_NJ: Any, weight_EJO: Any, *rest: Any, **more: Any) -> int:
    return 2 * math.prod(x_NJ) * weight_EJO[-1]


def _sliced_outer(x_NJ: Any, grad_NO: Any, *rest: Any, **more: Any) -> int:
    return 2 * math.prod(x_NJ) * grad_NO[-1]
