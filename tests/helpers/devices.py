"""The same test on the CPU, where everybody runs it, and on a GPU, where there is one.

    @pytest.mark.parametrize(("device", "backend"), [on("cpu", "documents"), on("cuda", "flex"), on("cuda", "varlen")])

What needs a GPU carries the mark `gpu` and is skipped, with the reason, where there is none.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def on(device: str, *values: Any) -> Any:
    """One set of parameters, `device` first."""
    return pytest.param(device, *values, marks=NEEDS_GPU if device == "cuda" else [])


DEVICES = [on("cpu"), on("cuda")]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected|| of tensors on any devices; what is not a number is never small."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-30))
