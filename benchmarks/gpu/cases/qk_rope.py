"""Norm per head and rotary embedding of queries and keys: with norms as in GLM-4.5, without as in GLM-4.5-Air."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glmforge.kernels.qk_rope import qk_rope
from gpu.case import Case, Inputs, Setup, Widths

ORDER = 40
EPS = 1e-5


def cases(setup: Setup) -> Iterator[Case]:
    for model in setup.models:
        heads = model.num_attention_heads + model.num_key_value_heads
        one = setup.tokens * heads * model.head_dim * setup.dtype.itemsize
        for words, norms in (("norm and rotation", True), ("rotation", False)):
            plain = partial(_run, "plain")
            yield Case(
                name="qk_rope",
                size=f"{model.name}, {words}, {setup.tokens} x {heads} heads",
                make=partial(_inputs, setup=setup, model=model, norms=norms),
                implementations={
                    "plain": plain,
                    "compiled": setup.compile(plain),
                    "triton": partial(_run, "triton"),
                },
                bytes=2 * one,
                backward_bytes=(3 if norms else 2) * one,
                constant=(2, 3),
            )


def _run(implementation: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    q_weight, k_weight = weights or (None, None)
    return qk_rope(q, k, cos, sin, q_weight, k_weight, EPS, implementation=implementation)


def _inputs(g: Inputs, setup: Setup, model: Widths, norms: bool) -> tuple[Any, ...]:
    q, k = (
        g.normal(setup.tokens, heads, model.head_dim)
        for heads in (model.num_attention_heads, model.num_key_value_heads)
    )
    half = torch.arange(model.head_dim // 4, device=q.device) / (model.head_dim // 4)
    positions = torch.arange(setup.tokens, device=q.device, dtype=torch.float32)
    angles = (positions[:, None] * 1e6**-half).repeat(1, 2)[:, None]
    weights = (g.normal(model.head_dim), g.normal(model.head_dim)) if norms else ()
    return q, k, angles.cos().to(g.dtype), angles.sin().to(g.dtype), *weights
