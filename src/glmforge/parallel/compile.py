"""torch.compile of what a layer computes between the places where it waits for others.

A layer meets attention's kernel, the all-to-alls of its experts and the hooks of FSDP units (router and experts are
units of their own). None of these can be part of a compiled graph. Compiled as a whole, a layer would be traced into
each of them and torn apart there, and its pieces compiled anew for any number of rows a rank's experts happen to
get. So the parts between are compiled instead, each in one graph or not at all, and the layer's own few lines run as
they are written:

    dense layer    before attention | after attention, SwiGLU
    MoE layer      before attention | after attention, router | shared experts | experts, for any number of rows
    MTP layer      the same behind a part that combines its two inputs

A part that cannot be traced in one graph is an error when it first runs, so there are no graph breaks. Layers of one
kind share what was compiled. It is compiled anew only where a shape changes: with a phase, and where a rank's experts
get no row or a single one, which torch treats as shapes of their own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from glmforge.model.block import DecoderLayer, MTPLayer
from glmforge.model.moe import Experts, MoE
from glmforge.model.transformer import GlmMoe

Options = dict[str, Any]
"""Of inductor (`torch.compile(options=...)`)."""


def compile_parts(model: GlmMoe, *, tensor_parallel: Options | None = None) -> None:
    """Compile the parts of every layer of `model`, in place; to be called before FSDP shards it.

    `tensor_parallel` are options for the parts in which the ranks of the tp axis gather and scatter.
    """
    for layer in model.layers:
        _compile(layer, "before_attention", tensor_parallel)
        _compile(layer, "after_attention", tensor_parallel)
        if isinstance(layer, MTPLayer):
            _compile(layer, "combine")
        _compile_mlp(layer, tensor_parallel)
    if model.model.norm is not None:
        _compile(model.model.norm, "forward")


def _compile_mlp(layer: DecoderLayer, tensor_parallel: Options | None) -> None:
    if not isinstance(layer.mlp, MoE):
        _compile(layer.mlp, "forward", tensor_parallel)
        return
    # Of modules that are FSDP units the method is compiled, not the call: hooks stay outside.
    _compile(layer.mlp.gate, "forward")
    _compile(layer.mlp.shared_experts, "forward", tensor_parallel)
    _compile_experts(layer.mlp.experts)


def _compile(module: nn.Module, method: str, options: Options | None = None) -> None:
    setattr(module, method, _compiled(getattr(module, method), options=options))


def _compiled(function: Callable[..., Any], *, options: Options | None = None) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, options=options)
    return compiled


def _compile_experts(experts: Experts) -> None:
    compiled = _compiled(experts.swiglu)

    def swiglu(x_ND: Tensor, counts_e: Tensor, weights_N: Tensor | None = None) -> Tensor:
        for of_rows in (x_ND, weights_N):
            if of_rows is not None:
                torch._dynamo.mark_dynamic(of_rows, 0)
        y_ND: Tensor = compiled(x_ND, counts_e, weights_N)
        return y_ND

    experts.swiglu = swiglu  # type: ignore[method-assign]
