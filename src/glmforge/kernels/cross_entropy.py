"""Cross-entropy straight from hidden states: the V logits of a token exist only while its chunk is at work.

At V = 151,552 the float32 logits of one 8,192-token row take 4.6 GiB, and their gradient as much again. So tokens
are taken in chunks: matmul to logits, softmax in float32, loss, and the chunk's logits are overwritten by the next.

`linear_cross_entropy_sum`, which training uses, computes the gradients in the forward pass, while the chunk's softmax
is available: they are linear in the upstream gradient, which is a scalar, so backward only scales them. That is three
matmuls over the vocabulary instead of the four of recomputing the logits, at the price of holding the weight's
gradient from forward to backward (it would exist a moment later anyway). `token_nll` has one upstream gradient per
token, known only in backward, and recomputes. Both compute only the gradients that are requested: a frozen head has
none of its own, and takes two matmuls.

Two implementations of what happens between the matmuls: "plain" keeps two float32 copies of a chunk's logits, "triton"
(`glmforge.kernels.triton.cross_entropy`) none, for logits of at most 32 bits.

PyTorch 2.13 has `F.linear_cross_entropy` (2.11 does not). Its chunked form keeps fewer logits, but on a CPU took 2.8
times as long as this (2,048 tokens, D 256, V 32,768, float32), its backward works in place, and it knows no vocabulary
in parts and no log Z.

Shapes: T tokens, D hidden_size, V vocabulary, C tokens of one chunk; Z the sum of the exponentials of a token's logits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from glmforge.kernels.target import kernel_device

IGNORE_INDEX = -100

CHUNK_TOKENS = {"cpu": 1024, "cuda": 4096}
"""Enough that reading and writing the weight's gradient once per chunk is a small part of the matmul that makes it."""

CPU_ROWS_AT_ONCE = 64
"""Of a chunk, between the matmuls: their float32 logits stay in the cache."""


@dataclass(frozen=True)
class VocabularyShard:
    """Rows [start, start + V) of a vocabulary spread over ranks.

    `max` and `sum` reduce a small tensor over those ranks, outside autograd. The gradient that a function gives for h
    is then this shard's part, to be summed over the ranks by the caller that distributed h; the weight's is complete.
    """

    start: int
    max: Callable[[Tensor], Tensor]
    sum: Callable[[Tensor], Tensor]


def linear_cross_entropy_sum(
    h_TD: Tensor,
    weight_VD: Tensor,
    labels_T: Tensor,
    weights_T: Tensor | None = None,
    *,
    chunk_tokens: int | None = None,
    shard: VocabularyShard | None = None,
    nll_T: Tensor | None = None,
    z_weight: float = 0.0,
    log_z_T: Tensor | None = None,
    implementation: str = "plain",
) -> Tensor:
    """Scalar: the sum of -log softmax(h @ weight^T)[label] over all labels that are not -100.

    Matmuls run in h's dtype (the weight is cast to it), softmax and sum in float32 or better. The gradients have
    the dtypes of h and weight.

    Args:
        labels_T: int64 in [0, vocabulary) or -100.
        weights_T: float32, how much each token's summand counts; None: all alike, 1.
        chunk_tokens: tokens whose logits exist at once; None: `CHUNK_TOKENS` of the device.
        shard: which rows `weight_VD` is; None: all. The value is this rank's share of the sum: all of it on the rank
            with the first row, 0 on the others.
        nll_T: float32 or better, to be filled with each token's summand, for metrics.
        z_weight: adds `z_weight * (log Z)^2` to every summand of the scalar (not to `nll_T`): the z-loss that keeps
            logits from drifting (PaLM, Chowdhery et al., 2022, arXiv 2204.02311). It costs no further matmul.
        log_z_T: as `nll_T`, to be filled with log Z, 0 where the label is -100.
        implementation: "plain" or "triton".
    """
    with_gradients = torch.is_grad_enabled() and (h_TD.requires_grad or weight_VD.requires_grad)
    softmax = _Softmax(shard, with_gradients, implementation, z_weight)
    return _LinearCrossEntropySum.apply(h_TD, weight_VD, labels_T, weights_T, chunk_tokens, softmax, nll_T, log_z_T)


def token_nll(
    h_TD: Tensor,
    weight_VD: Tensor,
    labels_T: Tensor,
    *,
    chunk_tokens: int | None = None,
    shard: VocabularyShard | None = None,
    entropy_T: Tensor | None = None,
    implementation: str = "plain",
) -> Tensor:
    """nll_T in float32 or better: -log softmax(h @ weight^T)[label] per token, 0 where the label is -100.

    Differentiable in h and weight; the negative is the log-probability that reinforcement learning asks for. With a
    `shard`, all ranks get the same values. On a CPU nothing is multiplied for tokens without a label; elsewhere their
    number would have to be waited for.

    Args:
        entropy_T: zeros, float32 or better, to be filled with the entropy of each distribution whose token has a label,
            without gradient and without a further matmul; not by "triton".
    """
    given = chunk_tokens, shard, implementation
    if type(labels_T) is not Tensor or not labels_T.is_cpu or (labels_T != IGNORE_INDEX).all():
        return _TokenNLL.apply(h_TD, weight_VD, labels_T, entropy_T, *given)
    rows_L = (labels_T != IGNORE_INDEX).nonzero().squeeze(1)
    entropy_L = None if entropy_T is None else entropy_T.new_zeros(len(rows_L))
    nll_L: Tensor = _TokenNLL.apply(h_TD[rows_L], weight_VD, labels_T[rows_L], entropy_L, *given)
    if entropy_T is not None and entropy_L is not None:
        entropy_T[rows_L] = entropy_L
    return nll_L.new_zeros(len(labels_T)).index_copy(0, rows_L, nll_L)


@dataclass(frozen=True)
class _Softmax:
    """What happens between the matmuls of a chunk; `with_gradients` overwrites its logits by those of the loss."""

    shard: VocabularyShard | None
    with_gradients: bool
    implementation: str
    z_weight: float = 0.0
    with_entropy: bool = False


class _LinearCrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h_TD: Tensor,
        weight_VD: Tensor,
        labels_T: Tensor,
        weights_T: Tensor | None,
        chunk_tokens: int | None,
        softmax: _Softmax,
        nll_T: Tensor | None,
        log_z_T: Tensor | None,
    ) -> Tensor:
        loss = torch.zeros((), dtype=_softmax_dtype(h_TD), device=h_TD.device)
        gradients = _Gradients(h_TD, weight_VD, ctx.needs_input_grad) if softmax.with_gradients else None
        has_value = softmax.shard is None or softmax.shard.start == 0
        for chunk in _chunks(h_TD, weight_VD.to(h_TD.dtype), labels_T, chunk_tokens, softmax):
            weights_C = None if weights_T is None else weights_T[chunk.rows]
            if has_value:
                loss += _weighted_sum(chunk.nll_C, weights_C)
                if softmax.z_weight:
                    loss += softmax.z_weight * _weighted_sum(chunk.log_z_C.square(), weights_C)
                if nll_T is not None:
                    nll_T[chunk.rows] = chunk.nll_C
                if log_z_T is not None:
                    log_z_T[chunk.rows] = chunk.log_z_C
            if gradients is not None:
                gradients.add(chunk, weights_C)
        if gradients is not None:
            ctx.save_for_backward(gradients.h_grad_TD, gradients.weight_grad_VD)
            ctx.weight_dtype = weight_VD.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h_grad_TD, weight_grad_VD = ctx.saved_tensors
        of_h = None if h_grad_TD is None else h_grad_TD * grad
        of_weight = None if weight_grad_VD is None else (weight_grad_VD * grad).to(ctx.weight_dtype)
        return of_h, of_weight, None, None, None, None, None, None


def _weighted_sum(x_C: Tensor, weights_C: Tensor | None) -> Tensor:
    return x_C.sum() if weights_C is None else (x_C * weights_C).sum()


class _TokenNLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h_TD: Tensor,
        weight_VD: Tensor,
        labels_T: Tensor,
        entropy_T: Tensor | None,
        chunk_tokens: int | None,
        shard: VocabularyShard | None,
        implementation: str,
    ) -> Tensor:
        ctx.save_for_backward(h_TD, weight_VD, labels_T)
        ctx.chunk_tokens, ctx.softmax = chunk_tokens, _Softmax(shard, True, implementation)
        nll_T = torch.empty(len(labels_T), dtype=_softmax_dtype(h_TD), device=h_TD.device)
        softmax = _Softmax(shard, False, implementation, with_entropy=entropy_T is not None)
        for chunk in _chunks(h_TD, weight_VD.to(h_TD.dtype), labels_T, chunk_tokens, softmax):
            nll_T[chunk.rows] = chunk.nll_C
            if entropy_T is not None:
                entropy_T[chunk.rows] = chunk.entropy_C
        return nll_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor | None, ...]:
        h_TD, weight_VD, labels_T = ctx.saved_tensors
        gradients = _Gradients(h_TD, weight_VD, ctx.needs_input_grad)
        for chunk in _chunks(h_TD, gradients.weight_VD, labels_T, ctx.chunk_tokens, ctx.softmax):
            gradients.add(chunk, grad_T[chunk.rows])
        of_weight = None if gradients.weight_grad_VD is None else gradients.weight_grad_VD.to(weight_VD.dtype)
        return gradients.h_grad_TD, of_weight, None, None, None, None, None


@dataclass(frozen=True)
class _Chunk:
    """One chunk's loss and log Z in float32 or better, 0 where the label is ignored; `grad_CV` is the loss's gradient
    for the logits in h's dtype, None without gradients; `entropy_C` is 0 unless asked for.

    Rows whose label is ignored have no meaningful gradient: the taker multiplies by `valid_C1`.
    """

    rows: slice
    valid_C1: Tensor
    nll_C: Tensor
    log_z_C: Tensor
    entropy_C: Tensor
    grad_CV: Tensor | None


def _softmax_dtype(h_TD: Tensor) -> torch.dtype:
    return torch.promote_types(h_TD.dtype, torch.float32)


def _chunks(
    h_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, chunk_tokens: int | None, softmax: _Softmax
) -> Iterator[_Chunk]:
    device = kernel_device(h_TD.device)
    chunk_tokens = chunk_tokens or CHUNK_TOKENS.get(device, CHUNK_TOKENS["cuda"])
    # Collectives, and launching kernels, want few large pieces; a CPU's cache needs small ones.
    at_once = CPU_ROWS_AT_ONCE if device == "cpu" and softmax.shard is None else chunk_tokens
    loss_and_gradient = _triton_loss_and_gradient if softmax.implementation == "triton" else _loss_and_gradient
    for start in range(0, len(labels_T), chunk_tokens):
        rows = slice(start, start + chunk_tokens)
        logits_CV = torch.mm(h_TD[rows], weight_VD.t())
        valid_C = labels_T[rows] != IGNORE_INDEX
        pieces = zip(logits_CV.split(at_once), labels_T[rows].split(at_once), strict=True)
        results = [loss_and_gradient(logits, labels, softmax) for logits, labels in pieces]
        log_z_C, label_logits_C, entropy_C = (torch.cat(parts) for parts in zip(*results, strict=True))
        yield _Chunk(
            rows,
            valid_C.unsqueeze(1),
            (log_z_C - label_logits_C) * valid_C,
            log_z_C * valid_C,
            entropy_C * valid_C,
            logits_CV if softmax.with_gradients else None,
        )


def _loss_and_gradient(logits_CV: Tensor, labels_C: Tensor, softmax: _Softmax) -> tuple[Tensor, Tensor, Tensor]:
    """log Z, the label's logit and the entropy of some rows; the logits may be overwritten by the loss's gradient."""
    valid_C1 = (labels_C != IGNORE_INDEX).unsqueeze(1)
    exact_CV = logits_CV.to(_softmax_dtype(logits_CV))
    if softmax.shard is None:
        labels_C1 = labels_C.unsqueeze(1).where(valid_C1, 0)
        hit_C1 = torch.ones_like(valid_C1)
        log_z_C, probs_CV = _probabilities(exact_CV)
        label_logits_C = exact_CV.gather(1, labels_C1).squeeze(1)
    else:
        local_C1 = labels_C.unsqueeze(1) - softmax.shard.start
        hit_C1 = valid_C1 & (local_C1 >= 0) & (local_C1 < logits_CV.shape[1])
        labels_C1 = local_C1.where(hit_C1, 0)
        label_logits_C = exact_CV.gather(1, labels_C1).where(hit_C1, 0).squeeze(1)
        log_z_C, probs_CV, label_logits_C = _sharded_probabilities(exact_CV, label_logits_C, softmax.shard)
    entropy_C = torch.zeros_like(log_z_C)
    if softmax.with_entropy:
        mean_C = torch.linalg.vecdot(probs_CV, exact_CV)
        entropy_C = log_z_C - (mean_C if softmax.shard is None else softmax.shard.sum(mean_C))
    if softmax.with_gradients:
        if softmax.z_weight:
            probs_CV *= 1 + 2 * softmax.z_weight * log_z_C.unsqueeze(1)
        logits_CV.copy_(probs_CV.scatter_add_(1, labels_C1, -hit_C1.to(probs_CV.dtype)))
    return log_z_C, label_logits_C, entropy_C


def _triton_loss_and_gradient(logits_CV: Tensor, labels_C: Tensor, softmax: _Softmax) -> tuple[Tensor, Tensor, Tensor]:
    from glmforge.kernels.triton.cross_entropy import logit_statistics, logits_to_gradient_

    shard = softmax.shard
    first = 0 if shard is None else shard.start
    max_C, sum_C, label_logits_C = logit_statistics(logits_CV, labels_C, first)
    if shard is not None:
        max_over_shards_C = shard.max(max_C.clone())
        sum_C = sum_C * (max_C - max_over_shards_C).exp()
        sum_C, label_logits_C = shard.sum(torch.stack((sum_C, label_logits_C))).unbind()
        max_C = max_over_shards_C
    log_z_C = max_C + sum_C.log()
    if softmax.with_gradients:
        logits_to_gradient_(logits_CV, labels_C, first, log_z_C, 1 + 2 * softmax.z_weight * log_z_C)
    return log_z_C, label_logits_C, torch.zeros_like(log_z_C)


def _probabilities(logits_CV: Tensor) -> tuple[Tensor, Tensor]:
    """log Z and the probabilities."""
    probs_CV = logits_CV.softmax(dim=-1)
    # The largest logit's probability is exp(0) / Z, so log Z takes two cheap reductions.
    return logits_CV.amax(dim=-1) - probs_CV.amax(dim=-1).log(), probs_CV


def _sharded_probabilities(
    logits_CV: Tensor, label_logits_C: Tensor, shard: VocabularyShard
) -> tuple[Tensor, Tensor, Tensor]:
    """log Z over all shards, this shard's probabilities, and the label's logit from wherever it is."""
    max_C = shard.max(logits_CV.amax(dim=-1))
    exp_CV = (logits_CV - max_C.unsqueeze(1)).exp_()
    sum_C, label_logits_C = shard.sum(torch.stack((exp_CV.sum(dim=-1), label_logits_C))).unbind()
    return max_C + sum_C.log(), exp_CV.div_(sum_C.unsqueeze(1)), label_logits_C


class _Gradients:
    """Gradients of h and weight, gathered chunk by chunk; the weight's is summed in float32 or better.

    `needed` says of h and weight whether there is to be one; otherwise it is None.
    """

    def __init__(self, h_TD: Tensor, weight_VD: Tensor, needed: Sequence[bool]) -> None:
        self.h_TD = h_TD
        self.weight_VD = weight_VD.to(h_TD.dtype)
        self.h_grad_TD = torch.empty_like(h_TD) if needed[0] else None
        self.weight_grad_VD = torch.zeros_like(weight_VD, dtype=_softmax_dtype(h_TD)) if needed[1] else None

    def add(self, chunk: _Chunk, upstream_C: Tensor | None) -> None:
        """d logits = upstream * (softmax - onehot(label)), and 0 where the label is ignored; None is 1.

        The factor is applied to the D wide rows on either side of the logits, not to the V wide logits.
        """
        grad_CV = chunk.grad_CV
        assert grad_CV is not None
        factor_C1 = chunk.valid_C1 if upstream_C is None else upstream_C.unsqueeze(1) * chunk.valid_C1
        if self.weight_grad_VD is not None:
            scaled_CD = (self.h_TD[chunk.rows] * factor_C1).to(self.h_TD.dtype)
            _add_product(self.weight_grad_VD, grad_CV.t(), scaled_CD)
        if self.h_grad_TD is not None:
            torch.mm(grad_CV, self.weight_VD, out=self.h_grad_TD[chunk.rows])
            self.h_grad_TD[chunk.rows] *= factor_C1


def _add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    """`into` += left @ right; `into` may have a wider type."""
    if into.dtype == left.dtype:
        into.addmm_(left, right)
    elif left.is_cuda:  # no product in half precision to be added afterwards; not on the CPU
        torch.addmm(into, left, right, out_dtype=into.dtype, out=into)
    else:
        into += left @ right
