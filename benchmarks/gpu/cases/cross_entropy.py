"""Cross-entropy from hidden states over the vocabulary; gradients are made in the forward pass."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels.cross_entropy import linear_cross_entropy_sum
from gpu.case import Case, Inputs, Setup, Widths

ORDER = 20


def cases(setup: Setup) -> Iterator[Case]:
    for model in setup.models:
        tokens = min(setup.tokens, 8192)
        product = 2.0 * tokens * model.hidden_size * model.vocab_size
        weights = model.vocab_size * model.hidden_size * setup.dtype.itemsize
        yield Case(
            name="cross_entropy",
            size=f"{model.name}, {tokens} x {model.hidden_size}, {model.vocab_size} words",
            make=partial(_inputs, model=model, tokens=tokens),
            check=partial(_inputs, model=model, tokens=min(tokens, 515)),
            implementations={
                "plain": linear_cross_entropy_sum,
                "all logits": all_logits,
                "all logits, compiled": setup.compile(all_logits),
            },
            flops=product,
            bytes=weights + tokens * model.hidden_size * setup.dtype.itemsize,
        )


def _inputs(g: Inputs, model: Widths, tokens: int) -> tuple[Any, ...]:
    labels_T = g.integers(model.vocab_size, tokens)
    labels_T[::7] = -100
    weight_VD = g.normal(model.vocab_size, model.hidden_size, std=model.hidden_size**-0.5)
    return g.normal(tokens, model.hidden_size), weight_VD, labels_T


def all_logits(h_TD: Tensor, weight_VD: Tensor, labels_T: Tensor) -> Tensor:
    """What transformers does."""
    return F.cross_entropy((h_TD @ weight_VD.T).float(), labels_T, ignore_index=-100, reduction="sum")
