"""Causal attention inside packed documents."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from gpu.case import Case, Inputs, Setup, Widths

ORDER = 30


def cases(setup: Setup) -> Iterator[Case]:
    backends = ("documents",) if setup.device.type == "cpu" else ("varlen", "flex")
    for model in setup.models:
        for words, lengths in _packings(setup.tokens).items():
            pairs = sum(length * (length + 1) / 2 for length in lengths)
            rows = 2 * model.num_attention_heads + 2 * model.num_key_value_heads
            yield Case(
                name="attention",
                size=f"{model.name}, {words}",
                make=partial(_inputs, model=model, lengths=lengths),
                check=partial(_inputs, model=model, lengths=(300, 1, 37, 174)),
                implementations={name: partial(_attend, name) for name in ("dense", *backends)},
                times_reference=False,  # it has a mask of all tokens by all tokens
                flops=4 * pairs * model.num_attention_heads * model.head_dim,
                bytes=rows * sum(lengths) * model.head_dim * setup.dtype.itemsize,
                backward_flops=10 * pairs * model.num_attention_heads * model.head_dim,
            )


def _packings(tokens: int) -> dict[str, tuple[int, ...]]:
    quarter = tokens // 4
    uneven = tuple(max(1, quarter * share // 32) for share in (1, 2, 3, 4, 6, 16, 32, 64))
    return {
        f"4 x {quarter} tokens": (quarter,) * 4,
        f"1 x {tokens} tokens": (tokens,),
        f"8 uneven documents of {sum(uneven)} tokens": uneven,
    }


def _inputs(g: Inputs, model: Widths, lengths: tuple[int, ...]) -> tuple[Any, ...]:
    heads = (model.num_attention_heads, model.num_key_value_heads, model.num_key_value_heads)
    qkv = (g.normal(sum(lengths), number, model.head_dim) for number in heads)
    return *qkv, Documents.from_lengths(lengths, g.generator.device)


def _attend(implementation: str, q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    return attention(q, k, v, documents, implementation=implementation)
