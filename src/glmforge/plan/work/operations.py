"""What a training step computes, operation by operation: FLOPs, and the bytes that must pass through device memory.

An operation is a part of the step that could be one kernel: a matmul, a norm with the residual before it, attention.
Its least bytes are each input read once and each output written once; today's implementations move more
(`glmforge.plan.time.expected`), and fusing two operations would move less. Matmuls have the shapes in which they are
run.

FLOPs are those done: attention's backward pass multiplies five times where the model's count has four, because no
kernel keeps the scores. `model_flops` are `glmforge.plan.counts.flops`'s, against which utilisation is measured.

Shapes: T tokens of a micro-batch on this rank, t its own ones where tp ranks share them, D hidden_size, H query and G
key/value heads of P, E experts on this rank, K experts per token, N rows of its experts, I moe_intermediate_size, V
vocabulary rows on this rank.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from glmforge.config.model import ModelConfig

BF16, FP32, INT64 = 2, 4, 8

Kind = Literal["matmul", "attention", "memory"]
Direction = Literal["forward", "backward"]


@dataclass(frozen=True)
class Matmul:
    """[m, k] x [k, n]. With `groups`, that many at once, whose m (or k, if `contracts_rows`) together are that.

    A grouped matmul of experts has one weight [n, k] per group; its weight gradients are the products that contract the
    rows of each group. `is_symmetric`: the result is, so that half of it would do; FLOPs are those of the whole.
    """

    m: int
    n: int
    k: int
    groups: int = 1
    contracts_rows: bool = False
    itemsize: int = BF16
    is_symmetric: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Both operands and the result, once each."""
        left, weight, result = self.m * self.k, self.groups * self.n * self.k, self.m * self.n
        if self.contracts_rows:
            weight, result = self.n * self.k, self.groups * self.m * self.n
        return self.itemsize * (left + weight + result)


@dataclass(frozen=True)
class Work:
    """One direction of an operation. `bytes`: the least through memory, matmuls' operands included."""

    bytes: int = 0
    matmuls: tuple[Matmul, ...] = ()
    attention_flops: int = 0

    @property
    def flops(self) -> int:
        return sum(matmul.flops for matmul in self.matmuls) + self.attention_flops


NOTHING = Work()


@dataclass(frozen=True)
class Operation:
    """An operation on one micro-batch, done `times` in a step (layers x micro-batches, or a rank's share).

    Attributes:
        in_model: whether it belongs to what `train_flops_per_token` counts.
        again: whether the backward pass computes the forward one a second time.
        repeats: how often today's code does what would be enough once.
        is_update: whether it is done once a step, when all gradients are there.
    """

    name: str
    kind: Kind
    forward: Work
    backward: Work = NOTHING
    times: int | Fraction = 1
    in_model: bool = True
    again: bool = False
    repeats: int = 1
    is_update: bool = False

    @property
    def passes(self) -> list[tuple[Direction, Work]]:
        """What is run, in order; a recomputed forward pass counts as backward."""
        passes: list[tuple[Direction, Work]] = [("forward", self.forward), ("backward", self.backward)]
        return passes + [("backward", self.forward)] * self.again

    @property
    def flops(self) -> int | Fraction:
        """Of the step."""
        return self.times * sum(work.flops for _, work in self.passes)

    @property
    def bytes(self) -> int | Fraction:
        """Of the step, the least."""
        return self.times * sum(work.bytes for _, work in self.passes)

    @property
    def model_flops(self) -> int | Fraction:
        """Of the step, without what is recomputed; attention's backward pass counts for two forward ones."""
        attention = 2 * self.forward.attention_flops * (self.backward.attention_flops > 0)
        matmuls = sum(matmul.flops for matmul in self.backward.matmuls)
        return (self.forward.flops + matmuls + attention) * self.times * self.in_model


@dataclass(frozen=True)
class Share:
    """What a rank has of a micro-batch and of a layer; the whole of both on one device.

    Attributes:
        tokens: T.
        attended: of this rank's tokens and queries, the squares of the documents' lengths added up; the causal half is
            part of the formulas. Where cp ranks share rows, their part of it.
        cp, tp, ep: how many ranks share rows, matrices and experts.
        sequence_parallel: whether norms see the rank's own tokens only.
    """

    tokens: int
    attended: int
    cp: int = 1
    tp: int = 1
    ep: int = 1
    sequence_parallel: bool = True

    @property
    def own(self) -> int:
        """Tokens that the router and the experts take from this rank."""
        return self.tokens // self.tp

    @property
    def normed(self) -> int:
        """Tokens whose residual stream this rank holds."""
        return self.own if self.sequence_parallel else self.tokens


def embedding(config: ModelConfig, share: Share) -> Operation:
    """Rows of the fp32 table, in bf16; backward they are added to its gradient."""
    elements = share.tokens * config.hidden_size
    ids = share.tokens * INT64
    return Operation("embedding", "memory", Work(ids + elements * (FP32 + BF16)), Work(ids + elements * (BF16 + 8)))


def layer(config: ModelConfig, share: Share, *, is_moe: bool) -> Iterator[Operation]:
    """A decoder layer."""
    yield _norms(config, share)
    yield from _attention(config, share)
    if is_moe:
        yield from _moe(config, share)
    else:
        yield from _swiglu("dense MLP", share.tokens, config.hidden_size, config.intermediate_size // share.tp)


def mtp_entry(config: ModelConfig, share: Share) -> Iterator[Operation]:
    """What an MTP layer does before and after its decoder layer: three norms, and `eh_proj`."""
    elements = share.normed * config.hidden_size
    yield Operation("MTP: norms", "memory", Work(3 * 2 * BF16 * elements), Work(3 * 3 * BF16 * elements))
    yield linear("MTP: eh_proj", share.normed, 2 * config.hidden_size, [config.hidden_size])


def final_norm(config: ModelConfig, share: Share) -> Operation:
    """Before the head."""
    elements = share.normed * config.hidden_size
    return Operation("final norm", "memory", Work(2 * BF16 * elements), Work(3 * BF16 * elements))


def head(config: ModelConfig, share: Share) -> Iterator[Operation]:
    """Logits and their loss. The gradients are computed along with the loss; the weight's is fp32."""
    rows = config.vocab_size // share.tp
    yield linear("head", share.tokens, config.hidden_size, [rows])
    logits = share.tokens * rows
    yield Operation("cross-entropy", "memory", Work(BF16 * 2 * logits))


def _norms(config: ModelConfig, share: Share) -> Operation:
    """The layer's two norms, each with the residual sum before it: x, y -> x + y, norm(x + y)."""
    elements = 2 * share.normed * config.hidden_size
    # Backward: the gradients of both results and x + y are read; one gradient, of x and y alike, is written.
    return Operation("residual and norm", "memory", Work(4 * BF16 * elements), Work(4 * BF16 * elements))


def _attention(config: ModelConfig, share: Share) -> Iterator[Operation]:
    q = config.num_attention_heads * config.head_dim // share.tp
    kv = config.num_key_value_heads * config.head_dim // share.tp
    yield linear("q, k, v projections", share.tokens, config.hidden_size, [q, kv, kv])
    rotated = BF16 * share.tokens * (q + kv)
    saved = rotated if config.use_qk_norm else 0  # a norm's backward pass reads what was normed
    name = "q/k norm and RoPE" if config.use_qk_norm else "RoPE"
    yield Operation(name, "memory", Work(2 * rotated), Work(2 * rotated + saved))

    product = share.attended * q  # half of 2 T S Q multiplications and additions: q k^T, or p v
    q_bytes, kv_bytes = BF16 * share.tokens * q, BF16 * share.tokens * share.cp * 2 * kv
    logsumexp = FP32 * share.tokens * config.num_attention_heads // share.tp
    yield Operation(
        "attention",
        "attention",
        Work(2 * q_bytes + kv_bytes + logsumexp, attention_flops=2 * product),
        Work(4 * q_bytes + 2 * kv_bytes + logsumexp, attention_flops=5 * product),
    )
    yield linear("output projection", share.tokens, q, [config.hidden_size])


def _moe(config: ModelConfig, share: Share) -> Iterator[Operation]:
    d, inner, choices = config.hidden_size, config.moe_intermediate_size, config.num_experts_per_tok
    num_experts = config.n_routed_experts // share.ep
    rows = share.own * choices  # as many come from the other ranks of ep as go there
    x, x_rows = BF16 * share.own * d, BF16 * rows * d
    yield _router(config, share)
    # Three index tensors are made of the choices.
    yield Operation("sort and permute", "memory", Work(4 * INT64 * rows + x + x_rows), Work(INT64 * rows + x_rows + x))
    yield linear("experts: gate and up", rows, d, [2 * inner], num_experts)
    yield _silu("experts: SwiGLU", rows, inner)
    yield linear("experts: down", rows, inner, [d], num_experts)
    # With the shared expert's result added. Backward: the results are read once more for the weights' gradients.
    weights = FP32 * rows + INT64 * rows
    yield Operation("combine", "memory", Work(weights + x_rows + 2 * x), Work(2 * weights + x + 2 * x_rows))
    if config.n_shared_experts:  # every GLM has one; models of others that are predicted need not
        yield from _swiglu("shared expert", share.tokens, d, config.n_shared_experts * inner // share.tp)


def _router(config: ModelConfig, share: Share) -> Operation:
    """In fp32, whole on every rank. Tensors: x in bf16, weight, scores, and the chosen ones' weights and numbers."""
    d, num_experts, choices = config.hidden_size, config.n_routed_experts, config.num_experts_per_tok
    x, weight, scores = BF16 * share.own * d, FP32 * num_experts * d, FP32 * share.own * num_experts
    chosen = share.own * choices
    return Operation(
        "router",
        "matmul",
        Work(x + weight + scores + (FP32 + INT64) * chosen, (Matmul(share.own, num_experts, d, itemsize=FP32),)),
        Work(
            FP32 * chosen + scores + 2 * x + 2 * weight,
            (
                Matmul(share.own, d, num_experts, itemsize=FP32),
                Matmul(num_experts, d, share.own, contracts_rows=True, itemsize=FP32),
            ),
        ),
    )


def _swiglu(name: str, tokens: int, width: int, inner: int) -> Iterator[Operation]:
    yield linear(f"{name}: gate and up", tokens, width, [inner, inner])
    yield _silu(f"{name}: SwiGLU", tokens, inner)
    yield linear(f"{name}: down", tokens, inner, [width])


def _silu(name: str, rows: int, inner: int) -> Operation:
    """gate, up -> silu(gate) * up. Backward: both and the gradient are read, two gradients written."""
    elements = rows * inner
    return Operation(name, "memory", Work(3 * BF16 * elements), Work(5 * BF16 * elements))


def linear(name: str, rows: int, width: int, outputs: list[int], groups: int = 1) -> Operation:
    """Linear maps of the same input, each a matmul; with `groups` each has that many weights, one for each expert."""
    total = sum(outputs)
    x, y, weights = BF16 * rows * width, BF16 * rows * total, BF16 * groups * width * total
    forward = (Matmul(rows, out, width, groups) for out in outputs)
    inputs = (Matmul(rows, width, out, groups) for out in outputs)
    gradients = (Matmul(out, width, rows, groups, contracts_rows=True) for out in outputs)
    return Operation(
        name, "matmul", Work(x + weights + y, tuple(forward)), Work(2 * (x + weights) + y, (*inputs, *gradients))
    )


def done_again(operations: Iterable[Operation], recompute: str) -> Iterator[Operation]:
    """A layer's operations under `parallel.recompute`: "full" computes all again, "selective" what is no matmul and no
    attention; the compiler's choice under "budget" is counted as none.

    torch ends a recomputation with the last tensor that the backward pass needs, which is what a dense layer's last
    map reads.
    """
    for operation in operations:
        is_asked = recompute == "full" or (recompute == "selective" and operation.kind == "memory")
        yield replace(operation, again=is_asked and operation.name != "dense MLP: down")
