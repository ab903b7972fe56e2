"""FlashAttention's variable-length kernel, `torch.nn.attention.varlen.varlen_attn`, made causal in every release.

Its arguments have changed from release to release. torch 2.11 takes `window_size`, and lets keys and values have fewer
heads without a word; 2.12 and 2.13 want `enable_gqa` said for that, and refuse it otherwise. The kernel underneath is
the same and shares key/value heads by itself, so nothing is ever repeated. What the installed function is to be given
is read from its signature, and a signature that none of this fits is an error rather than a guess: attention that is
not causal would train without complaint.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from glmforge.errors import GlmforgeError

_TENSORS_AND_LENGTHS = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")
_UNLIMITED_LEFT_NONE_RIGHT = (-1, 0)

CausalAttention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, int], Tensor]
"""(q_QHP, k_KGP, v_KGP, borders of the queries, of the keys, most queries, most keys) -> o_QHP."""


class UnknownSignatureError(GlmforgeError):
    """The installed torch's `varlen_attn` takes none of the arguments known to make it causal."""


def causal(function: Callable[..., Any]) -> CausalAttention:
    """`function`, a release's `varlen_attn`, with the options that make it causal over grouped key/value heads.

    Raises:
        UnknownSignatureError: it is unknown how to make it so.
    """
    signature = inspect.signature(function)
    options: dict[str, Any] = {}
    if "window_size" in signature.parameters:
        options["window_size"] = _UNLIMITED_LEFT_NONE_RIGHT
    elif "is_causal" in signature.parameters:
        options["is_causal"] = True
    if "enable_gqa" in signature.parameters:
        options["enable_gqa"] = True
    if not options.keys() & {"window_size", "is_causal"} or not _fits(signature, options):
        raise UnknownSignatureError(
            f"varlen attention: this torch's varlen_attn{signature} is unknown (known: torch 2.11 to 2.13); install "
            "one of these versions"
        )
    return functools.partial(function, **options)


def _fits(signature: inspect.Signature, options: dict[str, Any]) -> bool:
    """Whether the tensors and lengths come first, in this order, and nothing else is required."""
    try:
        signature.bind(*_TENSORS_AND_LENGTHS, **options)
    except TypeError:
        return False
    return tuple(signature.parameters)[: len(_TENSORS_AND_LENGTHS)] == _TENSORS_AND_LENGTHS


@functools.cache
def causal_varlen_attention() -> CausalAttention:
    """The installed torch's kernel. It aligns queries and keys at the bottom right; for CUDA with 16-bit types."""
    return causal(varlen_attn)
