"""Attention of new tokens over a key/value cache that lies in pages.

A page holds the keys of `page_size` tokens of one sequence, and another tensor their values. New tokens of several
sequences come one after another, any number of each: pieces of prompts and single tokens alike, without padding. Their
own keys and values are in their pages before they look for them.

- `plain`: the pages of a sequence are gathered, and attended to under a mask. The reference.

Query head h reads key/value head h // (H / G). The scale is P ** -0.5.

Shapes: T tokens, R sequences, M pages of the longest one, C tokens of a page (`page_size`), H query heads, G key/value
heads, P head_dim.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels.target import unknown_implementation


@dataclass(frozen=True, eq=False)
class PagedTokens:
    """Where the tokens of a step belong.

    Attributes:
        starts_R1: int32, the first token of each sequence, and T at the end.
        lengths_R: int32, tokens of each sequence that lie in its pages, the new ones among them.
        pages_RM: int32, the pages of each sequence in order; what is behind its last page does not count.
        slots_T: int64, where each new token lies: page * C + place in it.
        counts: new tokens of each sequence, on the host.
    """

    starts_R1: Tensor
    lengths_R: Tensor
    pages_RM: Tensor
    slots_T: Tensor
    counts: tuple[int, ...]


def write_pages(k_TGP: Tensor, v_TGP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens) -> None:
    """Put the keys and values of new tokens where they belong among all N pages."""
    page_size = keys_NGCP.shape[2]
    pages_T, places_T = tokens.slots_T // page_size, tokens.slots_T % page_size
    keys_NGCP[pages_T, :, places_T] = k_TGP.to(keys_NGCP.dtype)
    values_NGCP[pages_T, :, places_T] = v_TGP.to(values_NGCP.dtype)


def paged_attention(
    q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens, *, implementation: str = "plain"
) -> Tensor:
    """o_THP: each new token over the tokens of its sequence up to itself.

    Args:
        keys_NGCP, values_NGCP: all N pages of a layer.
        implementation: a name of `IMPLEMENTATIONS`.
    """
    if implementation not in IMPLEMENTATIONS:
        raise unknown_implementation("paged attention", implementation, IMPLEMENTATIONS)
    return IMPLEMENTATIONS[implementation](q_THP, keys_NGCP, values_NGCP, tokens)


def _plain(q_THP: Tensor, keys_NGCP: Tensor, values_NGCP: Tensor, tokens: PagedTokens) -> Tensor:
    outputs = []
    for row, (q_SHP, length) in enumerate(zip(q_THP.split(tokens.counts), tokens.lengths_R.tolist(), strict=True)):
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


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor, PagedTokens], Tensor]] = {"plain": _plain}
