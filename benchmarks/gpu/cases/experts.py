"""The expert-wise linear map: what a MoE layer spends most of its time in."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from glmforge.kernels.experts import expert_linear
from gpu.case import Case, Inputs, Setup, Widths

ORDER = 10


def cases(setup: Setup) -> Iterator[Case]:
    backends = ("loop", "sliced") if setup.device.type == "cpu" else ("loop", "grouped")
    for model in setup.models:
        rows = setup.tokens * min(model.num_experts, model.num_experts_per_tok)
        shapes = {
            "gate and up": (2 * model.moe_intermediate_size, model.hidden_size),
            "down": (model.hidden_size, model.moe_intermediate_size),
        }
        for words, (num_out, num_in) in shapes.items():
            weights = model.num_experts * num_out * num_in
            yield Case(
                name="experts",
                size=f"{model.name} {words}, {rows} rows, {model.num_experts} of {num_out} x {num_in}",
                make=partial(_inputs, setup=setup, model=model, shape=(num_out, num_in)),
                implementations={name: partial(_linear, name) for name in backends},
                flops=2.0 * rows * num_out * num_in,
                bytes=(rows * (num_out + num_in) + weights) * setup.dtype.itemsize,
            )


def _inputs(g: Inputs, setup: Setup, model: Widths, shape: tuple[int, int]) -> tuple[Any, ...]:
    counts_E = setup.counts(g, model)
    x_NJ = g.normal(int(counts_E.sum()), shape[1])
    return x_NJ, g.normal(model.num_experts, *shape, std=shape[1] ** -0.5), counts_E


def _linear(backend: str, x_NJ: Tensor, weight_EOJ: Tensor, counts_E: Tensor) -> Tensor:
    return expert_linear(x_NJ, weight_EOJ, counts_E, implementation=backend)
