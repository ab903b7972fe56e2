"""What the forward pass of a layer leaves behind for its backward pass, tensor by tensor, and what both take meanwhile.

Plain implementations are taken, which keep more than fused ones. Where a forward pass is computed again, the kept
tensors are those that `glmforge.parallel.recompute` says. Attention is FlashAttention's, which keeps queries, keys,
values, its result and one number per query and head; in fp32 a CPU's, which keeps the probabilities of short documents.

A frozen map keeps no inputs: only the gradient of its weight would need them. So a run with adapters keeps those of the
maps that have one; of what `optim.rules` freeze all are counted.
The router is balanced, so that the experts of a rank get as many rows as its tokens make.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from glmforge.config.model import ModelConfig
from glmforge.config.parallel import ParallelConfig
from glmforge.config.role import MODEL, Role
from glmforge.plan.work.operations import BF16, FP32, INT64, Share

_HEAD_CHUNK = {BF16: 4096, FP32: 1024}
"""Tokens whose logits exist at once, on a GPU and on a CPU."""
_CPU_BLOCK, _CPU_LONGEST = 32, 1024
"""Queries of a block of a CPU's attention, and the longest document that it keeps probabilities of."""
_MOVED_BYTES = 1 << 20
"""`activation_offload` leaves smaller tensors where they are."""


class Kept(NamedTuple):
    """A tensor that a layer keeps for its backward pass: bytes, and under which modes of recomputation."""

    bytes: int
    none: bool = True
    selective: bool = False
    full: bool = False


_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

_SELECTIVE_ALONE = (False, True)
"""Results that are kept because they are expensive, although no backward pass reads them."""


@dataclass(frozen=True)
class Passes:
    """Bytes of one micro-batch through some layers.

    Attributes:
        kept: from the forward pass to the backward pass.
        forward, backward: what either needs beside, at most.
    """

    kept: int
    forward: int
    backward: int


@dataclass(frozen=True)
class LayerActivations:
    """The tensors of the layers of a model under one layout and micro-batch.

    `rows`: sequences of the micro-batch; `seq_len`: their tokens, all cp ranks together; `itemsize`: of the compute
    type; `balance_loss`: whether the routers' scores are requested; `role`: which model of the stage it is;
    `trains_head`: whether the weight of its head has a gradient; `readers`: the maps and norms of layers, by their
    names there, that need their inputs for gradients of their own or their adapters', None being all.
    """

    model: ModelConfig
    parallel: ParallelConfig
    share: Share
    rows: int
    seq_len: int
    itemsize: int
    balance_loss: bool
    role: Role = MODEL
    trains_head: bool = True
    readers: frozenset[str] | None = None

    @cached_property
    def dense(self) -> Passes:
        """A dense decoder layer."""
        return self._passes([*self._attention(), *self._mlp()], self._backward_of_dense())

    @cached_property
    def moe(self) -> Passes:
        """A MoE layer."""
        return self._passes([*self._attention(), *self._moe()], self._backward_of_moe())

    @cached_property
    def mtp(self) -> Passes:
        """A MoE layer with the way in and out of a prediction depth."""
        return self._passes([*self._attention(), *self._moe(), *self._mtp()], self._backward_of_moe())

    @cached_property
    def embedding(self) -> Passes:
        """Hidden states in fp32, then in the compute type, and a flag for each token."""
        hidden = self.share.tokens * self.model.hidden_size
        return Passes(self.share.tokens, (FP32 + self.itemsize) * hidden, 2 * FP32 * hidden)

    @cached_property
    def head(self) -> Passes:
        """Final norm and cross-entropy of one depth: gradients are made in the forward pass, the weight's in fp32."""
        if not self.role.has_logits(self.model):
            return Passes(self._norm_bytes, self._norm_bytes, self._norm_bytes)
        share, width = self.share, self.model.hidden_size
        vocabulary = self.model.vocab_size // share.tp
        chunk = min(_HEAD_CHUNK[self.itemsize], share.tokens) * vocabulary
        weight = vocabulary * width * self.trains_head
        kept = self.head_gradient + self.itemsize * share.tokens * width + self._norm_bytes
        # Logits, where they are narrow their fp32 copy and its softmax, and the logits of the chunk before.
        logits = (1 + (share.tokens * vocabulary > chunk)) * self.itemsize * chunk + 2 * FP32 * chunk * self._is_narrow
        return Passes(kept, logits, FP32 * weight + self.itemsize * weight)

    @property
    def head_gradient(self) -> int:
        """fp32, of the rows of the vocabulary on this rank."""
        return FP32 * self.model.vocab_size // self.share.tp * self.model.hidden_size * self.trains_head

    @property
    def hidden_bytes(self) -> int:
        """The residual stream, as one stage of a pipeline sends it to the next."""
        return self.itemsize * self.share.normed * self.model.hidden_size

    @property
    def _is_narrow(self) -> bool:
        """Whether what is computed in fp32 needs copies."""
        return self.itemsize < FP32

    @property
    def _norm_bytes(self) -> int:
        """Of an RMSNorm: its input in fp32, the normed input, and the root for each token."""
        tokens = self.share.normed
        return (FP32 + self.itemsize) * tokens * self.model.hidden_size + FP32 * tokens

    def _kept_for(self, size: int, *names: str) -> int:
        """`size`, if one of those that read the tensor needs it for a gradient of its own, or its adapter's."""
        return size if self.readers is None or not self.readers.isdisjoint(names) else 0

    def _kept_by_norm(self, name: str) -> int:
        """As `_norm_bytes`; the normed input is for the gradient of the norm's weight."""
        normed = self.itemsize * self.share.normed * self.model.hidden_size
        return self._norm_bytes - normed + self._kept_for(normed, name)

    @property
    def _q(self) -> int:
        return self.model.num_attention_heads * self.model.head_dim // self.share.tp

    @property
    def _kv(self) -> int:
        return self.model.num_key_value_heads * self.model.head_dim // self.share.tp

    def _passes(self, tensors: list[Kept], backward: int) -> Passes:
        mode = self.parallel.recompute
        every = sum(tensor.bytes for tensor in tensors if tensor.none)
        # "budget" is the compiler's choice, and counted as none.
        kept = [t for t in tensors if getattr(t, mode if mode in ("selective", "full") else "none")]
        total = sum(tensor.bytes for tensor in kept)
        again = 0 if mode in ("none", "budget") else every
        if self.parallel.activation_offload:
            here = sum(tensor.bytes for tensor in kept if tensor.bytes < _MOVED_BYTES)
            # Fetched while the layer above is at work.
            again, total = again + 2 * (total - here), here
        return Passes(total, self._forward, again + backward)

    @property
    def _forward(self) -> int:
        """Beside what is kept: rows and their sums in fp32."""
        return 3 * FP32 * self.share.own * self.model.hidden_size + 2 * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return self.itemsize * self.share.own * self.model.num_experts_per_tok * self.model.hidden_size

    def _attention(self) -> Iterator[Kept]:
        """Both norms, and all between the two sums of the residual stream."""
        model, share, c = self.model, self.share, self.itemsize
        t, q, kv = share.tokens, self._q, self._kv
        yield Kept(self.hidden_bytes, none=not self._is_narrow, selective=True, full=True)  # the layer's input
        yield Kept(self._kept_by_norm("input_layernorm") + self._kept_by_norm("post_attention_layernorm"))
        # Gathered over tp, or the norm's result.
        yield Kept(self._kept_for(c * t * model.hidden_size, *_QKV))
        if model.use_qk_norm:
            heads = (model.num_attention_heads + model.num_key_value_heads) // share.tp
            yield Kept(FP32 * self._is_narrow * t * (q + kv) + FP32 * t * heads)
            yield Kept(self._kept_for(c * t * (q + kv), "self_attn.q_norm", "self_attn.k_norm"))
        yield Kept(c * t * (q + 2 * kv), selective=True)
        yield Kept(c * t * q + FP32 * t * model.num_attention_heads // share.tp, selective=True)
        if share.cp > 1 and self.parallel.context_method == "ulysses":
            yield Kept(c * t * q, selective=True)
        if not self._is_narrow:
            yield Kept(self._probabilities)
        yield Kept(c * t * model.hidden_size, *_SELECTIVE_ALONE)
        if share.tp > 1:
            yield Kept(self.hidden_bytes, *_SELECTIVE_ALONE)

    @property
    def _probabilities(self) -> int:
        """That a CPU's attention keeps of documents of no more than `_CPU_LONGEST` tokens."""
        if self.seq_len > _CPU_LONGEST:
            return 0
        heads = self.model.num_attention_heads // self.share.tp
        seen = self.share.tokens * (self.seq_len + min(_CPU_BLOCK, self.seq_len)) // 2
        return FP32 * heads * seen + FP32 * self.share.tokens * self._q

    def _mlp(self) -> Iterator[Kept]:
        yield from self._swiglu(self.share.tokens, self.model.intermediate_size // self.share.tp, "mlp")

    def _moe(self) -> Iterator[Kept]:
        model, share, c = self.model, self.share, self.itemsize
        own, rows = share.own, share.own * model.num_experts_per_tok
        scores = FP32 * own * model.n_routed_experts
        yield Kept(self._kept_for(self._is_narrow * FP32 * own * model.hidden_size, "mlp.gate"))
        yield Kept(scores, selective=self.balance_loss, full=self.balance_loss)
        yield Kept(scores, *_SELECTIVE_ALONE)
        yield Kept(self.balance_loss * FP32 * own * self.rows, selective=True, full=True)
        yield Kept((4 * FP32 + INT64) * rows)  # weights on their way to their sum 1, and their numbers
        yield Kept((FP32 + INT64) * rows, none=False, selective=True, full=True)  # the choice
        yield Kept(INT64 * rows * (3 if share.ep > 1 else 1))
        yield Kept(self._kept_for(self._row_bytes, "mlp.experts.gate_up_proj"))
        yield Kept(c * rows * 2 * model.moe_intermediate_size, selective=True)
        yield Kept(c * rows * model.moe_intermediate_size)
        yield Kept(self._kept_for(c * rows * model.moe_intermediate_size, "mlp.experts.down_proj"))
        yield Kept(self._row_bytes, selective=True)
        if share.ep > 1:
            yield Kept(2 * self._row_bytes, *_SELECTIVE_ALONE)
        width = model.n_shared_experts * model.moe_intermediate_size // share.tp
        yield from self._swiglu(share.tokens, width, "mlp.shared_experts")

    def _mtp(self) -> Iterator[Kept]:
        yield Kept(3 * self._norm_bytes + 2 * self.hidden_bytes)
        yield Kept(self.hidden_bytes, *_SELECTIVE_ALONE)
        yield Kept(self.hidden_bytes, none=False, selective=True, full=True)  # the second input

    def _swiglu(self, tokens: int, width: int, place: str) -> Iterator[Kept]:
        size = self.itemsize * tokens * width
        inputs = self.itemsize * tokens * self.model.hidden_size
        yield Kept(self._kept_for(inputs, f"{place}.gate_proj", f"{place}.up_proj"))
        yield Kept(2 * size, selective=True)
        yield Kept(size)
        yield Kept(self._kept_for(size, f"{place}.down_proj"))
        yield Kept(self.itemsize * tokens * self.model.hidden_size, *_SELECTIVE_ALONE)
        if self.share.tp > 1:
            yield Kept(self.hidden_bytes, *_SELECTIVE_ALONE)

    def _backward_of_dense(self) -> int:
        return 3 * self.itemsize * self.share.tokens * self.model.intermediate_size // self.share.tp

    def _backward_of_moe(self) -> int:
        own = self.share.own * self.model.hidden_size
        return 2 * self._row_bytes + 3 * FP32 * own
