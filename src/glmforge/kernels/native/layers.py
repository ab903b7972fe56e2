"""All decoder layers of a step in one call of the native kernels, and the head in another.

A layer's weights are handed over as addresses: the owner of a `Layer` keeps the tensors alive, and rebuilds it where
they have moved.

Shapes: T tokens, D hidden_size, R rotary dims, L wanted tokens, V vocab_size, K experts of a token.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.kernels.native.calls import TYPES, Tokens, kernels

SIZES = ("hidden", "num_heads", "num_kv_heads", "head_dim", "rotary_dim", "width", "num_experts", "num_choices")
WEIGHTS = (
    *("input_norm", "q", "k", "v", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "o", "post_norm"),
    *("gate", "up", "down", "router", "expert_gate_up", "expert_down", "router_bias"),
)


class Layer(ctypes.Structure):
    """Sizes and addresses of a layer: `width` is that of the dense MLP or of the shared experts, `num_experts` is 0 in
    a dense layer, an address is None where the model has no such weight. With `router_in_float` the router's is float32
    independent of the others."""

    _fields_ = (
        *((name, c_int64) for name in (*SIZES, "expert_width")),
        *((name, c_float) for name in ("eps", "routed_scale")),
        *((name, c_int64) for name in ("normalise", "router_in_float")),
        *((name, c_void_p) for name in (*WEIGHTS, "keys", "values")),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("tokens", Tokens),
        *((name, c_void_p) for name in ("cos", "sin", "h", "experts")),
        ("num_threads", c_int64),
    )


class _Head(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("norm", "weight")),
        *((name, c_int64) for name in ("hidden", "vocab_size", "num_rows", "num_threads")),
        ("eps", c_float),
        *((name, c_void_p) for name in ("h", "rows", "logits")),
    )


@dataclass(frozen=True)
class Types:
    """What is computed in, and what the weights are kept in."""

    compute: torch.dtype
    weights: torch.dtype

    def codes(self) -> tuple[c_int64, c_int64]:
        return c_int64(TYPES[self.compute]), c_int64(TYPES[self.weights])


def run_layers(
    layers: Sequence[Layer], types: Types, h_TD: Tensor, cos_TR: Tensor, sin_TR: Tensor, tokens: Tokens
) -> Tensor:
    """experts_STK, int64, of each of the S layers (-1 in dense ones); `h_TD` is changed in place, and the pages filled.

    Args:
        h_TD, cos_TR, sin_TR: float32, contiguous.
    """
    num_choices = max(layer.num_choices for layer in layers)
    experts_STK = torch.full((len(layers), len(h_TD), num_choices), -1)
    pointers = (x.data_ptr() for x in (cos_TR, sin_TR, h_TD, experts_STK))
    step = _Step(tokens, *pointers, torch.get_num_threads())
    array = (Layer * len(layers))(*layers)
    kernels().glmforge_layers(array, c_int64(len(layers)), ctypes.byref(step), *types.codes())
    return experts_STK


def run_head(norm_D: Tensor, eps: float, weight_VD: Tensor, types: Types, h_TD: Tensor, rows_L: Tensor) -> Tensor:
    """logits_LV, float32, of tokens `rows_L`."""
    vocab_size, hidden = weight_VD.shape
    logits_LV = torch.empty(len(rows_L), vocab_size)
    sizes = (hidden, vocab_size, len(rows_L), torch.get_num_threads())
    pointers = (x.data_ptr() for x in (h_TD, rows_L, logits_LV))
    head = _Head(norm_D.data_ptr(), weight_VD.data_ptr(), *sizes, eps, *pointers)
    kernels().glmforge_head(ctypes.byref(head), *types.codes())
    return logits_LV
