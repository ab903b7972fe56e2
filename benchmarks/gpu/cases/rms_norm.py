"""RMSNorm of the hidden states, alone and with the residual's sum before it.

Beside this project's: torch's own, which computes the weight in fp32 as well, and Liger's where it is installed.
"""

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels.rms_norm import add_rms_norm, rms_norm
from gpu.case import Case, Inputs, Outputs, Setup

ORDER = 40
EPS = 1e-5


def cases(setup: Setup) -> Iterator[Case]:
    for model in setup.models:
        rows, width = setup.tokens, model.hidden_size
        one = rows * width * setup.dtype.itemsize
        yield Case(
            name="rms_norm",
            size=f"{model.name}, {rows} x {width}, after adding",
            make=partial(_inputs, rows=rows, width=width, number=2),
            implementations=_implementations(setup, add_rms_norm, "liger_fused_add_rms_norm"),
            bytes=4 * one,  # reads two, writes sum and norm
            backward_bytes=4 * one,  # reads the sum and two gradients, writes one
        )
        yield Case(
            name="rms_norm",
            size=f"{model.name}, {rows} x {width}",
            make=partial(_inputs, rows=rows, width=width, number=1),
            implementations=_implementations(setup, rms_norm, "liger_rms_norm") | {"torch": _torch},
            bytes=2 * one,
            backward_bytes=3 * one,
        )


def _implementations(setup: Setup, function: Callable[..., Any], liger: str) -> dict[str, Callable[..., Outputs]]:
    plain = partial(function, eps=EPS)
    implementations = {
        "plain": plain,
        "compiled": setup.compile(plain),
        "triton": partial(plain, implementation="triton"),
    }
    if setup.device.type == "cuda" and importlib.util.find_spec("liger_kernel") is not None:
        from liger_kernel.transformers import functional

        implementations["liger"] = partial(_liger, getattr(functional, liger))
    return implementations


def _liger(function: Callable[..., Any], *inputs: Tensor) -> Outputs:
    out = function(*inputs, EPS, casting_mode="llama", in_place=False)
    return out if isinstance(out, Tensor) else (out[1], out[0])  # it gives the norm first, then the sum


def _torch(x: Tensor, weight_D: Tensor) -> Tensor:
    return F.rms_norm(x, weight_D.shape, weight_D, EPS)


def _inputs(g: Inputs, rows: int, width: int, number: int) -> tuple[Any, ...]:
    return (*(g.normal(rows, width) for _ in range(number)), g.normal(width))
