"""Muon's orthogonalisation of the matrices of an expert layer and of a projection."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from glmforge.optim.newton_schulz import coefficients, newton_schulz
from gpu.case import Case, Inputs, Setup

ORDER = 60
STEPS = coefficients("polar_express", 5)


def cases(setup: Setup) -> Iterator[Case]:
    triton = {"triton": partial(newton_schulz, steps=STEPS, symmetric_matmul="triton")}
    if setup.device.type == "cpu":
        triton = {}  # Triton's interpreter cannot multiply bf16
    for model in setup.models:
        shapes = {
            "experts": (model.num_experts, model.moe_intermediate_size, model.hidden_size),
            "output projection": (1, model.hidden_size, model.num_attention_heads * model.head_dim),
        }
        for words, (number, rows, columns) in shapes.items():
            yield Case(
                name="symmetric_matmul",
                size=f"{model.name} {words}, {number} x {rows} x {columns}",
                make=partial(_inputs, shape=(number, rows, columns)),
                # An iteration in bf16 leaves singular values some per cent off, which Muon does not mind.
                tolerance=0.1,
                implementations={"plain": _plain, "compiled": setup.compile(_plain)} | triton,
                # Those of whole products, also for the implementation that computes half of two of them.
                flops=number * len(STEPS) * (4.0 * rows * rows * columns + 2.0 * rows**3),
                bytes=2.0 * number * rows * columns * setup.dtype.itemsize,
                has_backward=False,
            )


def _inputs(g: Inputs, shape: tuple[int, int, int]) -> tuple[Any, ...]:
    return (g.normal(*shape),)


def _plain(matrices_NAB: Tensor) -> Tensor:
    return newton_schulz(matrices_NAB, STEPS)
