"""Causal grouped-query attention inside the documents of a packed batch.

One function, several implementations that compute the same thing:

- `dense`: scaled-dot-product attention under an explicit T x T mask. The reference, and the only one to read first.
- `documents`: document by document, equal lengths batched; no mask over the whole batch ever exists. For the CPU.
  Short documents go block by block of queries through plain batched matmuls, which on a CPU beats PyTorch's flash
  kernel (forward and backward of 8 x 256 tokens, 8 query and 2 key/value heads of 64, one thread: float32 30 for 48 ms,
  bfloat16 19 for 54 ms) but saves the probabilities, so long ones take the flash kernel.
- `flex`: FlexAttention under a block mask of document ids, compiled. For CUDA; on a CPU it runs but has no backward.
- `varlen`: FlashAttention's variable-length kernel (`torch.nn.attention.varlen`). For CUDA with 16-bit types.
- `flash3`: FlashAttention 3's, from a package of its own, for Hopper. Where a configuration names it.

Query head h reads key/value head h // (H / G). The scale is P ** -0.5.

Shapes: T tokens, H query heads, G key/value heads, R = H / G query heads per key/value head, P head_dim; B documents
or segments of one length L batched together, C queries of one block, Q queries and K keys of a segment.
"""

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from glmforge.kernels.documents import Documents
from glmforge.kernels.flash3 import causal_flash3
from glmforge.kernels.target import automatic, kernel_device, unknown_implementation
from glmforge.kernels.varlen import causal_varlen_attention

BLOCK_QUERIES, BLOCK_QUERIES_BF16 = 32, 64
"""Smaller blocks compute less of what the mask hides; bfloat16 matmuls are so short that their number weighs more."""
MAX_LENGTH_IN_BLOCKS = 1024
"""Above this the saved probabilities (H * L^2 / 2 per document and layer) weigh more than the time they save."""


def attention(
    q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, documents: Documents, *, implementation: str = "auto"
) -> Tensor:
    """o_THP: softmax(q k^T * P**-0.5) v over the earlier tokens (and itself) of each token's own document.

    Args:
        implementation: a name of `IMPLEMENTATIONS`, or "auto": see `glmforge.kernels.target.automatic`.
    """
    if len(q_THP) != documents.num_tokens:
        raise ValueError(f"attention: {len(q_THP)} queries, but documents of {documents.num_tokens} tokens")
    if implementation == "auto":
        implementation = automatic("attention", kernel_device(q_THP.device), q_THP.dtype)
    if implementation not in IMPLEMENTATIONS:
        raise unknown_implementation("attention", implementation, IMPLEMENTATIONS)
    return IMPLEMENTATIONS[implementation](q_THP, k_TGP, v_TGP, documents)


def _dense(q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, documents: Documents) -> Tensor:
    ids_T = documents.ids_T()
    mask_TT = (ids_T[:, None] == ids_T).tril()
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_THP, k_TGP, v_TGP))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_TT, enable_gqa=True)
    return o.squeeze(0).transpose(0, 1)


def _documents(q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, documents: Documents) -> Tensor:
    def of_one_length(length: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return equal_segments(q, k, v, length, length)

    return by_length(documents, of_one_length, q_THP, k_TGP, v_TGP)


def by_length(documents: Documents, kernel: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`kernel(length, *rows)` for all documents of one length, one after another; its results in the tokens' order."""
    lengths = documents.lengths
    if min(lengths) == max(lengths):
        return kernel(lengths[0], *tensors)
    of_length: dict[int, list[int]] = defaultdict(list)
    for index, length in enumerate(lengths):
        of_length[length].append(index)
    pieces = [x.split(lengths) for x in tensors]
    outputs: dict[int, Tensor] = {}
    for length, indices in of_length.items():
        rows = (torch.cat([x[i] for i in indices]) for x in pieces)
        outputs.update(zip(indices, kernel(length, *rows).split(length), strict=True))
    return torch.cat([outputs[i] for i in range(len(lengths))])


def equal_segments(q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """o_THP of B segments, one after another, in which the last query sees all keys and each one before it one less.

    Args:
        q_THP: B * num_queries rows.
        k_TGP, v_TGP: B * num_keys rows; num_keys >= num_queries. A whole document has as many keys as queries.
    """
    if num_keys <= MAX_LENGTH_IN_BLOCKS:
        return _BlockAttention.apply(q_THP, k_TGP, v_TGP, num_queries, num_keys)
    q = q_THP.unflatten(0, (-1, num_queries)).transpose(1, 2)
    k, v = (x.unflatten(0, (-1, num_keys)).transpose(1, 2) for x in (k_TGP, v_TGP))
    if num_queries == num_keys:
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    else:
        o = _FlashSegments.apply(q, k, v)
    return o.transpose(1, 2).flatten(0, 1)


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _FlashSegments(torch.autograd.Function):
    """o_BHQP of segments that begin inside a document, K > Q: the last query sees all keys, each before it one less.

    The CPU's flash kernel needs the first query at the first key. So softmax over all keys is assembled from two
    calls, one over the keys before the segment, which every query sees, and one over the segment's own, which is
    causal: each result weighs the sum of exponentials that it comes from. Backward, each call is given the whole result
    and the logarithm of the whole sum, as in ring attention (Liu et al., 2023, arXiv 2310.01889), and so gives its part
    of the gradients. A mask would take queries x keys x 4 bytes, saved for the backward pass: 17 GB for one of two
    ranks that share 131,072 tokens.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (k_before, k_own), (v_before, v_own) = _split(k, q), _split(v, q)
        o_before, log_sum_before = _flash(q, k_before, v_before)
        o_own, log_sum_own = _flash(q, k_own, v_own, is_causal=True)
        log_sum = torch.logaddexp(log_sum_before, log_sum_own)
        # At most 1, and rounded to the result's type like it: no copy of it is made in a wider one.
        share_own = (log_sum_own - log_sum).exp_().unsqueeze(-1)
        o = torch.lerp(o_before, o_own, share_own.to(o_own.dtype))
        ctx.save_for_backward(q, k, v, o, log_sum)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, o, log_sum = ctx.saved_tensors
        (k_before, k_own), (v_before, v_own) = _split(k, q), _split(v, q)
        of_q, *before = _flash_backward(grad, q, k_before, v_before, o, log_sum, 0.0, False)
        of_q_own, *own = _flash_backward(grad, q, k_own, v_own, o, log_sum, 0.0, True)
        of_k, of_v = (torch.cat(parts, dim=2) for parts in zip(before, own, strict=True))
        return of_q + of_q_own, of_k, of_v


def _split(x_BGKP: Tensor, q_BHQP: Tensor) -> tuple[Tensor, Tensor]:
    """The keys before the segment, and its own."""
    before, own = x_BGKP.split([x_BGKP.shape[2] - q_BHQP.shape[2], q_BHQP.shape[2]], dim=2)
    return before, own


class _BlockAttention(torch.autograd.Function):
    """B segments of `num_queries` and L = `num_keys`; blocks of C queries meet the keys up to the block's end.

    The R query heads that share a key/value head are rows of one matmul, so keys and values are never repeated.
    Queries, outputs and their gradients are copied block by block between their own layout and the matmuls'.
    """

    @staticmethod
    def forward(ctx: Any, q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, num_queries: int, num_keys: int) -> Tensor:
        num_kv_heads = k_TGP.shape[1]
        k, v = _scaled_keys_and_values(k_TGP, v_TGP, num_keys)
        o_THP = torch.empty_like(q_THP, memory_format=torch.contiguous_format)
        q_BGRLP, o_BGRLP = (_by_head(x, num_kv_heads, num_queries) for x in (q_THP, o_THP))
        blocks = _blocks(num_queries, q_THP.dtype)
        longest = max(end - start for start, end in blocks)
        future_CC = torch.ones(longest, longest, dtype=torch.bool, device=k.device).triu(1)
        past = num_keys - num_queries
        queries, probs = [], []
        for start, end in blocks:
            queries.append(_rows(q_BGRLP, start, end))
            scores = torch.bmm(queries[-1], k[:, : past + end].transpose(1, 2))
            diagonal = scores.unflatten(1, (-1, end - start))[..., past + start :]
            diagonal.masked_fill_(future_CC[: end - start, : end - start], float("-inf"))
            probs.append(scores.softmax(dim=-1))
            _set_rows(o_BGRLP, start, end, torch.bmm(probs[-1], v[:, : past + end]))
        ctx.num_queries, ctx.num_keys = num_queries, num_keys
        ctx.save_for_backward(k_TGP, v_TGP, *queries, *probs)
        return o_THP

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_THP: Tensor) -> tuple[Tensor | None, ...]:
        k_TGP, v_TGP, *saved = ctx.saved_tensors
        _, num_kv_heads, head_dim = k_TGP.shape
        k, v = _scaled_keys_and_values(k_TGP, v_TGP, ctx.num_keys)
        blocks = _blocks(ctx.num_queries, k_TGP.dtype)
        past = ctx.num_keys - ctx.num_queries
        queries, probs = saved[: len(blocks)], saved[len(blocks) :]
        grad_q_THP = torch.empty_like(grad_THP, memory_format=torch.contiguous_format)
        grad_o, grad_q = (_by_head(x, num_kv_heads, ctx.num_queries) for x in (grad_THP, grad_q_THP))
        # Summed over blocks, so in float32 or better.
        grad_k, grad_v = (torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v))
        for (start, end), q, p in zip(blocks, queries, probs, strict=True):
            grad_o_rows = _rows(grad_o, start, end)
            grad_p = torch.bmm(grad_o_rows, v[:, : past + end].transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(grad_p, p, -1, p.dtype)
            _set_rows(grad_q, start, end, torch.bmm(grad_scores, k[:, : past + end]))
            grad_k[:, : past + end] += torch.bmm(grad_scores.transpose(1, 2), q)
            grad_v[:, : past + end] += torch.bmm(p.transpose(1, 2), grad_o_rows)
        grad_k.mul_(head_dim**-0.5)
        grad_k_TGP, grad_v_TGP = (_by_token(x.to(k.dtype), num_kv_heads) for x in (grad_k, grad_v))
        return grad_q_THP, grad_k_TGP, grad_v_TGP, None, None


def _scaled_keys_and_values(k_TGP: Tensor, v_TGP: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """Both as [B * G, L, P] for the matmuls; the keys times P ** -0.5."""
    k, v = (_by_head(x, x.shape[1], num_keys).reshape(-1, num_keys, x.shape[-1]) for x in (k_TGP, v_TGP))
    return k * k.shape[-1] ** -0.5, v


def _blocks(length: int, dtype: torch.dtype) -> list[tuple[int, int]]:
    size = BLOCK_QUERIES_BF16 if dtype == torch.bfloat16 else BLOCK_QUERIES
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def _by_head(x_THP: Tensor, num_kv_heads: int, length: int) -> Tensor:
    """View [T, H, P] as [B, G, R, L, P]."""
    return x_THP.unflatten(1, (num_kv_heads, -1)).unflatten(0, (-1, length)).permute(0, 2, 3, 1, 4)


def _by_token(x: Tensor, num_kv_heads: int) -> Tensor:
    """[B * G, L, P] -> [T, G, P]."""
    return x.unflatten(0, (-1, num_kv_heads)).transpose(1, 2).flatten(0, 1)


def _rows(x_BGRLP: Tensor, start: int, end: int) -> Tensor:
    """Copy a block of tokens as [B * G, R * C, P]."""
    return x_BGRLP[:, :, :, start:end].flatten(2, 3).flatten(0, 1)


def _set_rows(x_BGRLP: Tensor, start: int, end: int, rows: Tensor) -> None:
    block = x_BGRLP[:, :, :, start:end]
    block.copy_(rows.view(block.shape))


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


def _flex(q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, documents: Documents) -> Tensor:
    return flex_under_mask(q_THP, k_TGP, v_TGP, documents.block_mask)


def flex_under_mask(q_QHP: Tensor, k_TGP: Tensor, v_TGP: Tensor, mask: BlockMask) -> Tensor:
    """o_QHP by compiled FlexAttention; `mask` is of Q queries and T keys."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_QHP, k_TGP, v_TGP))
    o = _compiled_flex()(q, k, v, block_mask=mask, enable_gqa=True)
    return o.squeeze(0).transpose(0, 1)


def _varlen(q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, documents: Documents) -> Tensor:
    borders, longest = documents.cu_seqlens, documents.max_length
    return causal_varlen_attention()(q_THP, k_TGP, v_TGP, borders, borders, longest, longest)


def _flash3(q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, documents: Documents) -> Tensor:
    borders, longest = documents.cu_seqlens, documents.max_length
    return causal_flash3()(q_THP, k_TGP, v_TGP, borders, borders, longest, longest)


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Documents], Tensor]] = {
    "dense": _dense,
    "documents": _documents,
    "flex": _flex,
    "varlen": _varlen,
    "flash3": _flash3,
}
