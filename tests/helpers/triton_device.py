"""Where Triton's kernels are tested: compiled on the GPU if there is one, else on the CPU by the interpreter."""

import torch
from torch import Tensor

TRITON_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

ROUNDING = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""Relative error of one rounding to a type. To the nearest would be half of it, but the interpreter cuts off."""


def assert_near(actual: Tensor, exact: Tensor, num_roundings: int, dtype: torch.dtype) -> None:
    """`actual` differs from the float64 `exact` by no more than so many roundings to `dtype`, as vectors."""
    actual = actual.detach().cpu().double()
    assert actual.shape == exact.shape
    assert actual.isfinite().all()
    error, size = float((actual - exact.detach()).norm()), float(exact.detach().norm())
    assert error <= num_roundings * ROUNDING[dtype] * size, f"error {error / size:.1e} of {size:.1e}"
