"""The entropy of the next token's distribution, straight from hidden states: as in `cross_entropy`, the V logits of a
token exist only while its chunk is at work. Backward computes them again.

With l the logits and p = softmax(l): H = log Z - sum p l, and dH/dl = -p (log p + H).

Shapes: T tokens, D hidden_size, V vocabulary or this shard's part, C tokens of one chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from glmforge.kernels.cross_entropy import CHUNK_TOKENS, VocabularyShard
from glmforge.kernels.target import kernel_device


def token_entropy(h_TD: Tensor, weight_VD: Tensor, *, shard: VocabularyShard | None = None) -> Tensor:
    """H_T in nats, float32 or better, of softmax(h @ weight^T). Differentiable in h and weight.

    With a `shard` all ranks get the same values, and gradients are as `VocabularyShard` says.
    """
    entropy_T: Tensor = _TokenEntropy.apply(h_TD, weight_VD, shard)
    return entropy_T


class _TokenEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_TD: Tensor, weight_VD: Tensor, shard: VocabularyShard | None) -> Tensor:
        ctx.save_for_backward(h_TD, weight_VD)
        ctx.shard = shard
        weight_in_h_VD = weight_VD.to(h_TD.dtype)
        found = [_of_chunk(h_CD, weight_in_h_VD, shard)[0] for h_CD in h_TD.split(_chunk_tokens(h_TD))]
        return torch.cat(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor | None, ...]:
        h_TD, weight_VD = ctx.saved_tensors
        weight_in_h_VD = weight_VD.to(h_TD.dtype)
        h_grad_TD = torch.empty_like(h_TD) if ctx.needs_input_grad[0] else None
        dtype = torch.promote_types(h_TD.dtype, torch.float32)
        weight_grad_VD = torch.zeros_like(weight_VD, dtype=dtype) if ctx.needs_input_grad[1] else None
        size = _chunk_tokens(h_TD)
        for start in range(0, len(h_TD), size):
            rows = slice(start, start + size)
            entropy_C, log_probs_CV = _of_chunk(h_TD[rows], weight_in_h_VD, ctx.shard)
            grad_CV = -log_probs_CV.exp() * (log_probs_CV + entropy_C.unsqueeze(1)) * grad_T[rows].unsqueeze(1)
            grad_CV = grad_CV.to(h_TD.dtype)
            if h_grad_TD is not None:
                torch.mm(grad_CV, weight_in_h_VD, out=h_grad_TD[rows])
            if weight_grad_VD is not None:
                weight_grad_VD += grad_CV.t() @ h_TD[rows]
        return h_grad_TD, None if weight_grad_VD is None else weight_grad_VD.to(weight_VD.dtype), None


def _of_chunk(h_CD: Tensor, weight_VD: Tensor, shard: VocabularyShard | None) -> tuple[Tensor, Tensor]:
    """The entropy of each token, and this shard's log-probabilities."""
    logits_CV = (h_CD @ weight_VD.t()).to(torch.promote_types(h_CD.dtype, torch.float32))
    if shard is None:
        log_probs_CV = logits_CV.log_softmax(dim=-1)
        return -(log_probs_CV.exp() * log_probs_CV).sum(dim=-1), log_probs_CV
    max_C = shard.max(logits_CV.amax(dim=-1))
    log_z_C = max_C + shard.sum((logits_CV - max_C.unsqueeze(1)).exp().sum(dim=-1)).log()
    log_probs_CV = logits_CV - log_z_C.unsqueeze(1)
    return shard.sum(-(log_probs_CV.exp() * log_probs_CV).sum(dim=-1)), log_probs_CV


def _chunk_tokens(h_TD: Tensor) -> int:
    return CHUNK_TOKENS.get(kernel_device(h_TD.device), CHUNK_TOKENS["cuda"])
