"""torch's count of FLOPs, completed by the operators that it does not know."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import glmforge.kernels.adapted_experts
import glmforge.kernels.experts  # noqa: F401 - registers the operators below

_aten, _ours = torch.ops.aten, torch.ops.glmforge


def flop_counter() -> FlopCounterMode:
    """Counts matmuls, those of experts too, and attention, while it is entered."""
    mapping = {_aten.addmm_: _addmm, _ours.sliced_mm: _sliced_mm, _ours.sliced_outer: _sliced_outer}
    mapping |= {_ours.adapted_mm: _adapted_mm, _ours.adapted_mm_backward: _adapted_mm_backward}
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


def _adapted_mm(x_NJ: Any, weight_EOJ: Any, a_ErJ: Any, b_EOr: Any, *rest: Any, **more: Any) -> int:
    return 2 * x_NJ[0] * sum(math.prod(matrix[1:]) for matrix in (weight_EOJ, a_ErJ, b_EOr))


def _adapted_mm_backward(
    grad_NO: Any, x_NJ: Any, low_Nr: Any, weight_EOJ: Any, a_ErJ: Any, b_EOr: Any, *rest: Any, **more: Any
) -> int:
    # Three products with each factor's shape: gradients of the rows, of the matrix, and of what lies between.
    of_rows = 2 * x_NJ[0] * math.prod(weight_EOJ[1:])
    return of_rows + 2 * 2 * x_NJ[0] * (math.prod(a_ErJ[1:]) + math.prod(b_EOr[1:]))
