"""Attention over pages by every back end of a device, against single tokens in float64."""

import pytest
import torch
from torch import Tensor

from glmforge.kernels.native.calls import is_available
from glmforge.kernels.paged_attention import PagedTokens, paged_attention
from helpers.devices import on, relative_error
from helpers.pages import paged_step, random_attention

# float32 sums in another order; bfloat16 rounds inputs and outputs (the native kernel nothing in between), a GPU's
# kernels probabilities too.
FP32, BF16 = (torch.float32, 2e-6), (torch.bfloat16, 8e-3)
BACKENDS = [
    on("cpu", "plain", torch.float64, 1e-12),
    on("cpu", "native", *FP32),
    on("cpu", "native", *BF16),
    on("cuda", "plain", torch.float32, 1e-5),
    on("cuda", "varlen", torch.bfloat16, 2e-2),
]
STEPS = {
    "single tokens": ([0, 5, 31, 300], [1, 1, 1, 1]),
    "a piece among single tokens": ([9, 0, 40], [1, 37, 1]),
    "a long piece": ([270], [130]),
    "one long sequence": ([1300], [1]),
}
HEADS = {"grouped": (8, 2, 64), "whole": (3, 3, 20), "many for one": (24, 1, 16), "as 4.6": (12, 1, 128)}


def reference(q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens) -> Tensor:
    """Token after token, over keys that are found one by one in their pages."""
    page_size, group = keys_NGCP.shape[2], q_THP.shape[1] // keys_NGCP.shape[1]
    outputs = []
    for row, (count, length) in enumerate(zip(tokens.counts, tokens.lengths, strict=True)):
        places = [(int(tokens.pages_RM[row, at // page_size]), at % page_size) for at in range(length)]
        k_KGP, v_KGP = (torch.stack([x[page, :, at] for page, at in places]) for x in (keys_NGCP, values_NGCP))
        k_KHP, v_KHP = (x.repeat_interleave(group, dim=1) for x in (k_KGP, v_KGP))
        for end in range(length - count + 1, length + 1):
            q_HP = q_THP[len(outputs)]
            scores_HK = torch.einsum("hp,khp->hk", q_HP, k_KHP[:end]) * q_HP.shape[-1] ** -0.5
            outputs.append(torch.einsum("hk,khp->hp", scores_HK.softmax(dim=-1), v_KHP[:end]))
    return torch.stack(outputs)


def to_device(tokens: PagedTokens, device: str) -> PagedTokens:
    tensors = (tokens.starts_R1, tokens.lengths_R, tokens.pages_RM, tokens.slots_T)
    return PagedTokens(*(x.to(device) for x in tensors), tokens.counts, tokens.lengths)


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("device", "backend", "dtype", "tolerance"), BACKENDS)
def test_against_single_tokens(
    device: str,
    backend: str,
    dtype: torch.dtype,
    tolerance: float,
    step: tuple[list[int], list[int]],
    heads: tuple[int, int, int],
) -> None:
    if backend == "native" and not is_available():
        pytest.skip("no C++ compiler")
    tokens, num_pages = paged_step(*step, page_size=16)
    # Rounded before, so that only what the kernel does is measured.
    inputs = [x.to(dtype) for x in random_attention(tokens, num_pages, 16, heads)]
    expected = reference(*(x.double() for x in inputs), tokens)
    found = paged_attention(*(x.to(device) for x in inputs), to_device(tokens, device), implementation=backend)
    assert found.dtype == dtype
    assert relative_error(found, expected) < tolerance
