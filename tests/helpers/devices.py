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
    marks = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    ]
    return pytest.param(device, *values, marks=marks if device == "cuda" else [])


DEVICES = [on("cpu"), on("cuda")]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected|| of tensors on any devices; what is not a number is never small."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-30))


TRITON_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where Triton's kernels are tested: compiled on the GPU if there is one, else on the CPU by the interpreter."""

ROUNDING = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""Relative error of one rounding to a type. To the nearest would be half of it, but the interpreter cuts off."""


def assert_near(actual: Tensor, exact: Tensor, num_roundings: int, dtype: torch.dtype) -> None:
    """`actual` differs from the float64 `exact` by no more than so many roundings to `dtype`, as vectors."""
    actual = actual.detach().cpu().double()
    assert actual.shape == exact.shape
    assert actual.isfinite().all()
    error, size = float((actual - exact.detach()).norm()), float(exact.detach().norm())
    assert error <= num_roundings * ROUNDING[dtype] * size, f"error {error / size:.1e} of {size:.1e}"


def far_apart(rows: Tensor) -> Tensor:
    """A copy of three rows, the last of which lies more than 2^31 elements behind the first (4 GiB of addresses in
    bfloat16, of which a CPU gives memory to what is touched)."""
    assert len(rows) == 3
    stride = 2**30 + 8
    memory = torch.empty(2 * stride + rows.shape[1], dtype=rows.dtype, device=rows.device)
    return memory.as_strided(rows.shape, (stride, 1)).copy_(rows)
