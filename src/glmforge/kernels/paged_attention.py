"""Attention of new tokens over a key/value cache that lies in pages.

A page holds the keys of `page_size` tokens of one sequence, and another tensor their values. New tokens of several
sequences come one after another, any number of each: pieces of prompts and single tokens alike, without padding. Their
own keys and values are in their pages before they look for them.

- `plain`: the pages of a sequence are gathered, and attended to under a mask. The reference.
- `native`: C++ for the CPU in float32 and bfloat16 (`glmforge.kernels.native`). Pages are read where they lie, and one
  long sequence is shared among all threads.
- `flashinfer`: FlashInfer's kernel over pages, where the package is installed. For CUDA with 16-bit types.
- `varlen`: PyTorch's FlashAttention over keys and values that are gathered from their pages at every step (it reads
  pages itself only with FlashAttention 3). For CUDA with 16-bit types.

Query head h reads key/value head h // (H / G). The scale is P ** -0.5.

Shapes: T tokens, R sequences, M pages of the longest one, C tokens of a page (`page_size`), H query heads, G key/value
heads, P head_dim.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels import flashinfer
from glmforge.kernels.native import calls as native
from glmforge.kernels.target import unknown_implementation
from glmforge.kernels.varlen import causal_varlen_attention


@dataclass(frozen=True, eq=False)
class PagedTokens:
    """Where the tokens of a step belong.

    Attributes:
        starts_R1: int32, the first token of each sequence, and T at the end.
        lengths_R: int32, tokens of each sequence that lie in its pages, the new ones among them.
        pages_RM: int32, the pages of each sequence in order; what is behind its last page does not count.
        slots_T: int64, where each new token lies: page * C + place in it.
        counts, lengths: new tokens of each sequence, and `lengths_R`, on the host.
    """

    starts_R1: Tensor
    lengths_R: Tensor
    pages_RM: Tensor
    slots_T: Tensor
    counts: tuple[int, ...]
    lengths: tuple[int, ...]

    def native(self, page_size: int) -> native.Tokens:
        return native.Tokens.of(self.starts_R1, self.lengths_R, self.pages_RM, self.slots_T, page_size)


def write_pages(k_TGP: Tensor, v_TGP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens) -> None:
    """Put the keys and values of new tokens where they belong among all N pages."""
    page_size, dtype = keys_NGCP.shape[2], keys_NGCP.dtype
    k_TGP, v_TGP = k_TGP.to(dtype), v_TGP.to(dtype)
    if _takes_native(k_TGP):
        native.write_pages(k_TGP, v_TGP, keys_NGCP, values_NGCP, tokens.native(page_size))
        return
    pages_T, places_T = tokens.slots_T // page_size, tokens.slots_T % page_size
    keys_NGCP[pages_T, :, places_T] = k_TGP
    values_NGCP[pages_T, :, places_T] = v_TGP


def paged_attention(
    q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens, *, implementation: str = "auto"
) -> Tensor:
    """o_THP: each new token over the tokens of its sequence up to itself, in the dtype of q. It has no gradient.

    Args:
        keys_NGCP, values_NGCP: all N pages of a layer, in the dtype of q.
        implementation: a name of `IMPLEMENTATIONS`, or "auto": on a CPU "native" where it can be obtained, on a GPU
            "flashinfer" or "varlen", and "plain" for types that these do not take.
    """
    if implementation == "auto":
        implementation = _automatic(q_THP)
    if implementation not in IMPLEMENTATIONS:
        raise unknown_implementation("paged attention", implementation, IMPLEMENTATIONS)
    return IMPLEMENTATIONS[implementation](q_THP, keys_NGCP, values_NGCP, tokens)


def _automatic(q_THP: Tensor) -> str:
    if _takes_native(q_THP):
        return "native"
    if q_THP.device.type == "cuda" and q_THP.dtype.itemsize == 2:
        return "flashinfer" if flashinfer.is_installed() else "varlen"
    return "plain"


def _takes_native(x: Tensor) -> bool:
    return x.device.type == "cpu" and native.is_available(x.dtype)


def _plain(q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens) -> Tensor:
    outputs = []
    for row, (q_SHP, length) in enumerate(zip(q_THP.split(tokens.counts), tokens.lengths, strict=True)):
        pages = tokens.pages_RM[row, : -(-length // keys_NGCP.shape[2])].long()
        # [M, G, C, P] -> [G, M * C, P]
        k, v = (x[pages].transpose(0, 1).flatten(1, 2)[:, :length] for x in (keys_NGCP, values_NGCP))
        past = length - len(q_SHP)
        visible = torch.ones(len(q_SHP), length, dtype=torch.bool, device=q_THP.device).tril(past)
        o = F.scaled_dot_product_attention(
            q_SHP.transpose(0, 1)[None], k.to(q_THP.dtype)[None], v.to(q_THP.dtype)[None], visible, enable_gqa=True
        )
        outputs.append(o[0].transpose(0, 1))
    return torch.cat(outputs)


def _native(q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens) -> Tensor:
    return native.attention(q_THP, keys_NGCP, values_NGCP, tokens.native(keys_NGCP.shape[2]))


def _flashinfer(q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens) -> Tensor:
    sizes = flashinfer.Sizes.of(q_THP, keys_NGCP)
    plan = flashinfer.plan(tokens, tokens.starts_R1, tokens.pages_RM, tokens.lengths, sizes)
    return plan.run(q_THP, (keys_NGCP, values_NGCP))


def _varlen(q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens) -> Tensor:
    page_size, device = keys_NGCP.shape[2], q_THP.device
    # Sequence after sequence, the page and the place of each of its tokens; their number is known on the host.
    lengths_R = tokens.lengths_R.long()
    total, rows = sum(tokens.lengths), torch.arange(len(tokens.lengths), device=device)
    row_K = rows.repeat_interleave(lengths_R, output_size=total)
    borders_R1 = F.pad(lengths_R.cumsum(0), (1, 0))
    place_K = torch.arange(total, device=device) - borders_R1[row_K]
    pages_K, places_K = tokens.pages_RM[row_K, place_K // page_size].long(), place_K % page_size
    k_KGP, v_KGP = keys_NGCP[pages_K, :, places_K], values_NGCP[pages_K, :, places_K]
    attend = causal_varlen_attention()
    most = max(tokens.counts), max(tokens.lengths)
    return attend(q_THP, k_KGP, v_KGP, tokens.starts_R1, borders_R1.to(torch.int32), *most)


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor, PagedTokens], Tensor]] = {
    "plain": _plain,
    "native": _native,
    "flashinfer": _flashinfer,
    "varlen": _varlen,
}
