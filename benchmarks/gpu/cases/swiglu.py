"""silu(gate) * up of the routed rows, each times its weight."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from glmforge.kernels.swiglu import swiglu
from gpu.case import Case, Inputs, Setup, Widths

ORDER = 25


def cases(setup: Setup) -> Iterator[Case]:
    for model in setup.models:
        rows = setup.tokens * min(model.num_experts, model.num_experts_per_tok)
        one = rows * model.moe_intermediate_size * setup.dtype.itemsize
        yield Case(
            name="swiglu",
            size=f"{model.name}, {rows} rows of {model.moe_intermediate_size}",
            make=partial(_inputs, rows=rows, model=model),
            implementations={
                "plain": swiglu,
                "compiled": setup.compile(swiglu),
                "triton": partial(swiglu, implementation="triton"),
            },
            bytes=3 * one + 4 * rows,
            backward_bytes=5 * one + 8 * rows,
        )


def _inputs(g: Inputs, rows: int, model: Widths) -> tuple[Any, ...]:
    return g.normal(rows, 2 * model.moe_intermediate_size), g.normal(rows, dtype=torch.float32).sigmoid()
