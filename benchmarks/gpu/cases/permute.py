"""Routed tokens into expert order and back."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from glmforge.kernels.dispatch import combine, permute, sort_by_expert
from gpu.case import Case, Inputs, Setup, Widths

ORDER = 15


def cases(setup: Setup) -> Iterator[Case]:
    for model in setup.models:
        chosen = min(model.num_experts, model.num_experts_per_tok)
        rows = setup.tokens * chosen
        row_bytes = model.hidden_size * setup.dtype.itemsize
        size = f"{model.name}, {setup.tokens} tokens to {chosen} of {model.num_experts} experts"
        yield Case(
            name="permute",
            size=f"{size}, there",
            make=partial(_tokens, setup=setup, model=model, chosen=chosen),
            implementations={name: partial(sort_and_permute, model.num_experts, name) for name in ("plain", "triton")},
            # Each row is written once; a token's copies are one read.
            bytes=(rows + setup.tokens) * row_bytes,
            backward_bytes=(rows + setup.tokens) * row_bytes,
            tolerance=1e-2,
        )
        yield Case(
            name="permute",
            size=f"{size}, back",
            make=partial(_rows, setup=setup, model=model, chosen=chosen),
            implementations={
                "plain": combine,
                "compiled": setup.compile(combine),
                "triton": lambda y, weights, routing: combine(y, weights, replace(routing, implementation="triton")),
            },
            bytes=(rows + setup.tokens) * row_bytes,
            backward_bytes=(2 * rows + setup.tokens) * row_bytes,
        )


def sort_and_permute(num_experts: int, implementation: str, x_TD: Tensor, experts_TK: Tensor) -> Tensor:
    return permute(x_TD, sort_by_expert(experts_TK, num_experts, implementation=implementation))


def _tokens(g: Inputs, setup: Setup, model: Widths, chosen: int) -> tuple[Any, ...]:
    return g.normal(setup.tokens, model.hidden_size), g.choices(setup.tokens, model.num_experts, chosen)


def _rows(g: Inputs, setup: Setup, model: Widths, chosen: int) -> tuple[Any, ...]:
    routing = sort_by_expert(g.choices(setup.tokens, model.num_experts, chosen), model.num_experts)
    weights_TK = g.normal(setup.tokens, chosen).float().sigmoid()
    return g.normal(setup.tokens * chosen, model.hidden_size), weights_TK, routing
