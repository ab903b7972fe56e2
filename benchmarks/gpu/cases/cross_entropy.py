"""Cross-entropy from hidden states over the vocabulary; gradients are made in the forward pass.

Beside this project's: torch's own chunked form where torch has it (2.13), and Liger's where it is installed.
"""

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
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
                "triton": partial(linear_cross_entropy_sum, implementation="triton"),
                "all logits": all_logits,
                "all logits, compiled": setup.compile(all_logits),
                **_of_others(setup),
            },
            flops=product,
            bytes=weights + tokens * model.hidden_size * setup.dtype.itemsize,
        )


def _inputs(g: Inputs, model: Widths, tokens: int) -> tuple[Any, ...]:
    labels_T = g.integers(model.vocab_size, tokens)
    labels_T[::7] = -100
    weight_VD = g.normal(model.vocab_size, model.hidden_size, std=model.hidden_size**-0.5)
    return g.normal(tokens, model.hidden_size), weight_VD, labels_T


def _of_others(setup: Setup) -> dict[str, Callable[..., Tensor]]:
    others: dict[str, Callable[..., Tensor]] = {}
    if hasattr(F, "linear_cross_entropy"):
        options = torch.nn.LinearCrossEntropyOptions()
        others["torch"] = partial(F.linear_cross_entropy, reduction="sum", options=options)
    if setup.device.type == "cuda" and importlib.util.find_spec("liger_kernel") is not None:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        others["liger"] = partial(liger_fused_linear_cross_entropy, reduction="sum", accum_dtype=torch.float32)
    return others


def all_logits(h_TD: Tensor, weight_VD: Tensor, labels_T: Tensor) -> Tensor:
    """What transformers does."""
    return F.cross_entropy((h_TD @ weight_VD.T).float(), labels_T, ignore_index=-100, reduction="sum")
