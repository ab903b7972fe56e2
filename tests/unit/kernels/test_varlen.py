"""The adapter finds what each release's `varlen_attn` has to be given."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from glmforge.kernels.varlen import UnknownSignatureError, causal, causal_varlen_attention

ARGUMENTS = ("q", "k", "v", "cu_q", "cu_k", 7, 9)


def with_is_causal(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
    return (query, key, value, cu_seq_q, cu_seq_k, max_q, max_k), {"is_causal": is_causal}


def torch_2_11(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    return (query, key, value, cu_seq_q, cu_seq_k, max_q, max_k), {"window_size": window_size}


def torch_2_12(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    options = {"window_size": window_size, "enable_gqa": enable_gqa}
    return (query, key, value, cu_seq_q, cu_seq_k, max_q, max_k), options


@pytest.mark.parametrize(
    ("release", "options"),
    [
        (with_is_causal, {"is_causal": True}),
        (torch_2_11, {"window_size": (-1, 0)}),
        (torch_2_12, {"window_size": (-1, 0), "enable_gqa": True}),
    ],
)
def test_options_follow_the_signature(release: Callable[..., Any], options: dict[str, Any]) -> None:
    assert causal(release)(*ARGUMENTS) == (ARGUMENTS, options)


def no_mask(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None): ...
def other_order(query, key, value, cu_seq_q, max_q, cu_seq_k, max_k, *, window_size=(-1, -1)): ...
def one_more(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size, page_table): ...
def fewer(query, key, value, cu_seq_q, max_q, *, window_size=(-1, -1)): ...


@pytest.mark.parametrize("release", [no_mask, other_order, one_more, fewer])
def test_an_unknown_signature_is_an_error_that_shows_it(release: Callable[..., Any]) -> None:
    with pytest.raises(UnknownSignatureError, match=r"varlen_attn\(query, .* install one of these versions"):
        causal(release)


def test_the_installed_kernel_takes_grouped_heads_without_data() -> None:
    """Its shape function runs anywhere; the kernel itself needs CUDA."""
    q, k, v = (torch.empty(6, heads, 16, dtype=torch.bfloat16, device="meta") for heads in (4, 2, 2))
    borders = torch.tensor([0, 2, 6], dtype=torch.int32, device="meta")
    assert causal_varlen_attention()(q, k, v, borders, borders, 4, 4).shape == q.shape
