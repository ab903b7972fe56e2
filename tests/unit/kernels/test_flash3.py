"""FlashAttention 3 by its package's arguments: a stand-in with its signature, which computes plainly."""

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.kernels.flash3 import PACKAGE, UnknownFlashAttentionError, causal, causal_flash3


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> tuple[Tensor, None]:
    """As the package's: bottom-right causal over shared key/value heads; some releases return the logsumexp as well."""
    assert causal
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert max_seqlen_q >= int(cu_seqlens_q.diff().max())
    outputs = []
    for first, last in zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist(), strict=True):
        rows = (x[first:last].transpose(0, 1) for x in (q, k, v))
        outputs.append(F.scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True).transpose(0, 1))
    return torch.cat(outputs), None


def test_documents_through_the_packages_function(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType(PACKAGE)
    package.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PACKAGE, package)
    causal_flash3.cache_clear()
    documents = Documents.from_lengths([5, 1, 10])
    q, k, v = torch.randn(16, 4, 8), torch.randn(16, 2, 8), torch.randn(16, 2, 8)
    found = attention(q, k, v, documents, implementation="flash3")
    causal_flash3.cache_clear()
    # Two fp32 kernels of one sum over at most 10 keys
    torch.testing.assert_close(found, attention(q, k, v, documents, implementation="dense"), rtol=1e-5, atol=1e-6)


def test_a_function_with_other_arguments_is_refused() -> None:
    with pytest.raises(UnknownFlashAttentionError, match=r"has no argument cu_seqlens_q, cu_seqlens_k, causal;"):
        causal(lambda q, k, v, max_seqlen_q, max_seqlen_k: q)
