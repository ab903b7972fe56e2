"""Keys and values of sequences in pages that lie anywhere."""

import torch
from torch import Tensor

from glmforge.kernels.paged_attention import PagedTokens, write_pages


def paged_step(pasts: list[int], counts: list[int], page_size: int, seed: int = 0) -> tuple[PagedTokens, int]:
    """`counts` new tokens of each sequence behind `pasts` that are in its pages; and the number of all pages."""
    lengths = [past + count for past, count in zip(pasts, counts, strict=True)]
    sizes = [-(-length // page_size) for length in lengths]
    num_pages = sum(sizes) + 3
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed)).tolist()
    pages = [[order.pop() for _ in range(size)] for size in sizes]
    slots = [
        own[at // page_size] * page_size + at % page_size
        for own, past, length in zip(pages, pasts, lengths, strict=True)
        for at in range(past, length)
    ]
    starts = torch.tensor([0, *counts]).cumsum(0)
    padded = [own + [0] * (max(sizes) - len(own)) for own in pages]
    int32 = torch.int32
    tokens = PagedTokens(
        starts.to(int32),
        torch.tensor(lengths, dtype=int32),
        torch.tensor(padded, dtype=int32),
        torch.tensor(slots),
        tuple(counts),
        tuple(lengths),
    )
    return tokens, num_pages


def random_attention(
    tokens: PagedTokens, num_pages: int, page_size: int, heads: tuple[int, int, int], seed: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """q_THP, keys_NGCP and values_NGCP in float64, the new tokens' keys and values written among those of the past."""
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    keys_NGCP, values_NGCP = (normal(num_pages, num_kv_heads, page_size, head_dim) for _ in range(2))
    num_tokens = len(tokens.slots_T)
    k_TGP, v_TGP = (normal(num_tokens, num_kv_heads, head_dim) for _ in range(2))
    write_pages(k_TGP, v_TGP, keys_NGCP, values_NGCP, tokens)
    return normal(num_tokens, num_heads, head_dim), keys_NGCP, values_NGCP
