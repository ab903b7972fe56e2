"""Single operations of the native kernels on PyTorch tensors of the CPU. They have no gradient.

Shapes: T tokens, H query heads, G key/value heads, P head_dim, N pages, C tokens of a page, R sequences, M pages of the
longest one; for experts N rows, E experts, J input and O output features.
"""

import ctypes
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from glmforge.kernels.native.build import library

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""What the kernels call the dtypes that they take."""


def is_available(*dtypes: torch.dtype) -> bool:
    """Whether the kernels take these dtypes and could be compiled here."""
    return all(dtype in TYPES for dtype in dtypes) and library() is not None


class Tokens(ctypes.Structure):
    """`PagedTokens` with the tokens of a page."""

    _fields_ = (
        *((name, c_int64) for name in ("num_tokens", "num_sequences", "max_pages", "page_size")),
        *((name, c_void_p) for name in ("starts", "lengths", "pages", "slots")),
    )

    @classmethod
    def of(cls, starts_R1: Tensor, lengths_R: Tensor, pages_RM: Tensor, slots_T: Tensor, page_size: int) -> "Tokens":
        tensors = (starts_R1, lengths_R, pages_RM, slots_T)
        assert all(x.is_contiguous() for x in tensors), "made contiguous"
        return cls(len(slots_T), *pages_RM.shape, page_size, *(x.data_ptr() for x in tensors))


class _Attention(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("num_heads", "num_kv_heads", "head_dim")),
        *((name, c_void_p) for name in ("q", "keys", "values", "o")),
        ("tokens", Tokens),
        ("num_threads", c_int64),
    )


class _ExpertLinear(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "y", "counts")),
        *((name, c_int64) for name in ("num_experts", "num_in", "num_out", "num_threads")),
    )


def kernels() -> Any:
    """The library, which is there."""
    loaded = library()
    assert loaded is not None, "asked is_available before"
    return loaded


def attention(q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: Tokens) -> Tensor:
    """o_THP, see `glmforge.kernels.paged_attention`; all of one dtype."""
    q_THP, o_THP = q_THP.contiguous(), torch.empty_like(q_THP, memory_format=torch.contiguous_format)
    _, num_heads, head_dim = q_THP.shape
    pointers = (x.data_ptr() for x in (q_THP, keys_NGCP, values_NGCP, o_THP))
    call = _Attention(num_heads, keys_NGCP.shape[1], head_dim, *pointers, tokens, torch.get_num_threads())
    kernels().glmforge_attention(ctypes.byref(call), c_int64(TYPES[q_THP.dtype]))
    return o_THP


def write_pages(k_TGP: Tensor, v_TGP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: Tokens) -> None:
    """See `glmforge.kernels.paged_attention`; all of one dtype."""
    k_TGP, v_TGP = k_TGP.contiguous(), v_TGP.contiguous()
    pointers = (c_void_p(x.data_ptr()) for x in (k_TGP, v_TGP, keys_NGCP, values_NGCP))
    _, num_kv_heads, head_dim = k_TGP.shape
    sizes = (c_int64(x) for x in (num_kv_heads, head_dim, TYPES[k_TGP.dtype]))
    kernels().glmforge_write_pages(*pointers, ctypes.byref(tokens), *sizes)


def expert_linear(x_NJ: Tensor, weight_EOJ: Tensor, counts_E: Tensor) -> Tensor:
    """y_NO: rows sorted by expert times their expert's matrix, which is rounded to the dtype of x."""
    num_experts, num_out, num_in = weight_EOJ.shape
    x_NJ, y_NO = x_NJ.contiguous(), x_NJ.new_empty(len(x_NJ), num_out)
    pointers = (x.data_ptr() for x in (x_NJ, weight_EOJ, y_NO, counts_E))
    call = _ExpertLinear(*pointers, num_experts, num_in, num_out, torch.get_num_threads())
    types = (c_int64(TYPES[x.dtype]) for x in (x_NJ, weight_EOJ))
    kernels().glmforge_expert_linear(ctypes.byref(call), *types)
    return y_NO
