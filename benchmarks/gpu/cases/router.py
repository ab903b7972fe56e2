"""From a router's logits to each token's experts and weights."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glmforge.kernels.router import RoutingRule, route
from gpu.case import Case, Inputs, Setup, Widths

ORDER = 20


def cases(setup: Setup) -> Iterator[Case]:
    for model in setup.models:
        rule = RoutingRule(model.num_experts_per_tok, 1, 1, normalise=True, scale=2.5)
        plain = partial(_weights_by_expert, rule, "plain")
        logits, chosen = setup.tokens * model.n_routed_experts * 4, setup.tokens * model.num_experts_per_tok
        yield Case(
            name="router",
            size=f"{model.name}, {setup.tokens} tokens to {rule.num_choices} of {model.n_routed_experts} experts",
            make=partial(_inputs, setup=setup, model=model),
            implementations={
                "plain": plain,
                "compiled": setup.compile(plain),
                "triton": partial(_weights_by_expert, rule, "triton"),
            },
            bytes=logits + 12 * chosen,
            backward_bytes=logits + 16 * chosen,
            tolerance=1e-4,  # all in fp32
            constant=(1,),
        )


def _weights_by_expert(rule: RoutingRule, implementation: str, logits_TE: Tensor, bias_E: Tensor) -> Tensor:
    """The weights in the order of the experts: implementations may choose in another order."""
    routes = route(logits_TE, bias_E, rule, implementation=implementation)
    return routes.weights_TK.gather(1, routes.experts_TK.argsort(dim=1))


def _inputs(g: Inputs, setup: Setup, model: Widths) -> tuple[Any, ...]:
    logits_TE = g.normal(setup.tokens, model.n_routed_experts, dtype=torch.float32)
    return logits_TE, g.normal(model.n_routed_experts, std=0.05, dtype=torch.float32)
