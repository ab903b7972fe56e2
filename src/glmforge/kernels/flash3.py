"""FlashAttention 3 for Hopper, from the package `flash_attn_interface` (the `hopper` folder of flash-attention).

torch 2.13 can put these kernels under its own (`activate_flash_attention_impl("FA3")`), for the whole process and, in
torch 2.11, without a backward pass. Called directly they are one implementation among others, the same in both. What
the installed function takes is read from its signature, as for torch's varlen attention (`kernels/varlen.py`).
"""

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from glmforge.errors import GlmforgeError
from glmforge.kernels.varlen import CausalAttention

PACKAGE = "flash_attn_interface"
_ARGUMENTS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


class UnknownFlashAttentionError(GlmforgeError):
    """The installed `flash_attn_interface` does not take the arguments of FlashAttention 3."""


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


@functools.cache
def causal_flash3() -> CausalAttention:
    """The installed kernel, causal and aligned at the bottom right; query heads share key/value heads by themselves.

    Raises `UnknownFlashAttentionError` for a function that takes other arguments.
    """
    return causal(importlib.import_module(PACKAGE).flash_attn_varlen_func)


def causal(function: Callable[..., Any]) -> CausalAttention:
    """`flash_attn_varlen_func` of some release by named arguments; its result alone where it gives more."""
    missing = [name for name in (*_ARGUMENTS, "causal") if name not in inspect.signature(function).parameters]
    if missing:
        raise UnknownFlashAttentionError(
            f"kernels.attention: flash3: {PACKAGE}.flash_attn_varlen_func has no argument {', '.join(missing)}; "
            "install FlashAttention 3, or set kernels.attention to varlen"
        )

    def attend(*given: Tensor | int) -> Tensor:
        result = function(**dict(zip(_ARGUMENTS, given, strict=True)), causal=True)
        return result[0] if isinstance(result, tuple) else result

    return attend
