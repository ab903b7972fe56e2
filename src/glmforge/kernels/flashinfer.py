"""FlashInfer's attention over a paged key/value cache, for CUDA with 16-bit types. A package of its own.

It needs a plan of each step, made from the pages and lengths of all sequences and used by every layer (Ye et al., 2025,
arXiv 2501.01005). Prompt pieces and single tokens go through the same wrapper, since a step has both.

Shapes: R sequences, M pages of the longest one.
"""

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

PACKAGE = "flashinfer"
_WORKSPACE_BYTES = 128 << 20


class Sizes(NamedTuple):
    """Of a layer's attention; its pages are [N, kv_heads, page_size, head_dim]."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, q_THP: Tensor, keys_NGCP: Tensor) -> "Sizes":
        _, num_heads, head_dim = q_THP.shape
        _, num_kv_heads, page_size, _ = keys_NGCP.shape
        return cls(num_heads, num_kv_heads, head_dim, page_size, q_THP.dtype, q_THP.device)


@functools.cache
def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


@functools.lru_cache(maxsize=1)
def plan(step: object, starts_R1: Tensor, pages_RM: Tensor, lengths: Sequence[int], sizes: Sizes) -> Any:
    """The wrapper whose `run(q, (keys, values))` attends causally, the same for all layers of `step`.

    Args:
        step: what is the same object for all layers of a step and no other.
        starts_R1: int32, the first query of each sequence, and their number at the end.
        pages_RM: int32, the pages of each sequence in order.
        lengths: tokens of each sequence in its pages, the queries' own among them.
    """
    num_pages = [-(-length // sizes.page_size) for length in lengths]
    used = torch.arange(pages_RM.shape[1]) < torch.tensor(num_pages)[:, None]
    wrapper = _wrapper(sizes.device)
    wrapper.plan(
        starts_R1.cpu(),
        torch.tensor([0, *num_pages]).cumsum(0).int(),
        pages_RM[used.to(pages_RM.device)],
        torch.tensor([(length - 1) % sizes.page_size + 1 for length in lengths], dtype=torch.int32),
        sizes.num_heads,
        sizes.num_kv_heads,
        sizes.head_dim,
        sizes.page_size,
        causal=True,
        q_data_type=sizes.dtype,
    )
    return wrapper


@functools.cache
def _wrapper(device: torch.device) -> Any:
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return importlib.import_module(PACKAGE).BatchPrefillWithPagedKVCacheWrapper(workspace, kv_layout="HND")
