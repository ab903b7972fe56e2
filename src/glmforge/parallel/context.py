"""Context parallelism: the ranks along `cp` share every row, and attention is where they meet.

With cp ranks each row of S tokens is cut in 2cp equal chunks, and rank r takes chunks r and 2cp - 1 - r of every row.
Causal attention costs a chunk as many keys as lie before it, so the sum of such a pair is the same on all ranks for a
document that fills the row (the zig-zag of Llama 3's training, arXiv:2407.21783, section 3.3.2, which also gathers
keys and values). Everything else in the model treats tokens one by one, and needs only to be given the right ones.

Two ways to attend, behind the model's `Attend`:

- `GatheredKeyValues`: every rank gathers all keys and values and attends with its own queries.
- `Ulysses` (DeepSpeed-Ulysses, arXiv:2309.14509): all-to-alls trade heads for tokens, so that a rank attends with
  some heads over whole rows; it needs cp to divide the key/value heads.

What a rank receives per layer for T tokens in elements of the compute type, forward and backward together, with H query
and G key/value heads of P numbers:

    gather, keeping what was gathered      2 * (cp - 1) / cp * 2 G P T
    gather, gathering again in backward    3 * (cp - 1) / cp * 2 G P T
    Ulysses                                2 * (cp - 1) / cp * (2 H + 2 G) P T / cp

Gather moves less where cp < (H + G) / G, or gathering again, cp < 2 (H + G) / 3G. For GLM-4.5 (H = 96, G = 8) that is
13 and 8.7, while Ulysses ends at cp = 8: PREFER GATHER, it moves less wherever both run, and knows no limit of heads.
Ulysses is the better one for models without grouped queries, and where documents are much shorter than rows: its ranks
always have equal work, while the zig-zag levels only long documents. Both keep what flows through them per rank at
T / cp tokens' worth, but for the gathered keys and values of the layer at work.

Shapes: T tokens of the micro-batch, t = T / cp on this rank, H query heads, G key/value heads, P head_dim, K keys in
the order of the attention kernel.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from glmforge.errors import ConfigError
from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.kernels.segments import Segments, attention_of_ordered_keys, chosen_implementation, key_order
from glmforge.model.attention import Attention
from glmforge.parallel.collectives import Group, all_gather, exchange
from glmforge.parallel.world import World


def local_ranges(num_rows: int, seq_len: int, cp: int, rank: int) -> list[tuple[int, int]]:
    """The ranges [begin, end) of the flattened rows that lie on a rank, in its order: two of every row.

    Raises:
        ConfigError: if a row does not divide in 2cp chunks.
    """
    if cp == 1:
        return [(row * seq_len, (row + 1) * seq_len) for row in range(num_rows)]
    if seq_len % (2 * cp):
        raise ConfigError(f"seq_len: {seq_len} tokens do not divide into 2 x cp = {2 * cp} chunks; make it a multiple")
    chunk = seq_len // (2 * cp)
    begins = [row * seq_len + number * chunk for row in range(num_rows) for number in (rank, 2 * cp - 1 - rank)]
    return [(begin, begin + chunk) for begin in begins]


def zigzag_index(num_rows: int, seq_len: int, cp: int, rank: int, device: torch.device | str | None = None) -> Tensor:
    """int64 [t]: the places of a rank's tokens among the flattened rows, in the rank's order."""
    ranges = local_ranges(num_rows, seq_len, cp, rank)
    return torch.cat([torch.arange(begin, end, device=device) for begin, end in ranges])


def gathered_order(num_rows: int, seq_len: int, cp: int, device: torch.device | str | None = None) -> Tensor:
    """int64 [T]: the places of all tokens, rank after rank: the order in which a gather brings them."""
    return torch.cat([zigzag_index(num_rows, seq_len, cp, rank, device) for rank in range(cp)])


class GatheredKeyValues:
    """Attention of this rank's queries over all ranks' keys and values.

    `regather` keeps only this rank's keys and values for the backward pass and gathers them a second time there. Per
    layer that saves (cp - 1) / cp * 2 G P T elements of memory (GLM-4.5 at 131072 tokens in bfloat16: 0.5 GiB less the
    own share, 43 GiB over 92 layers at cp = 16) and adds half as much again to what the layer communicates. Attention
    itself is not computed again. It works by hooks on the tensors that autograd saves, of which only the innermost are
    called: do not use it under activation checkpointing, which drops the gathered tensors anyway.
    """

    def __init__(
        self,
        documents: Documents,
        world: World,
        num_rows: int,
        seq_len: int,
        *,
        regather: bool = True,
    ) -> None:
        cp, rank = world.axis_size("cp"), world.axis_rank("cp")
        self.group = world.group("cp")
        self.regather = regather and self.group is not None
        self.segments = Segments.cut(documents, local_ranges(num_rows, seq_len, cp, rank))
        order_T = gathered_order(num_rows, seq_len, cp, documents.cu_seqlens.device)
        self._natural_T = order_T.argsort()
        self._orders: dict[str, Tensor] = {}

    def __call__(self, module: Attention, q_tHP: Tensor, k_tGP: Tensor, v_tGP: Tensor) -> Tensor:
        implementation = chosen_implementation(q_tHP, module.kernels.attention)
        order_K = self._order(implementation)
        kv_t2GP = torch.cat([k_tGP, v_tGP], dim=1)
        kv_K2GP = _gather(kv_t2GP, self.group, order_K)
        if not (self.regather and kv_K2GP.requires_grad):
            k_KGP, v_KGP = kv_K2GP.chunk(2, dim=1)
            return attention_of_ordered_keys(q_tHP, k_KGP, v_KGP, self.segments, implementation)
        again = _Regathered(kv_K2GP, kv_t2GP, self.group, order_K)
        kv_K2GP = _Release.apply(kv_K2GP, again)
        with saved_tensors_hooks(again.pack, again.unpack):
            k_KGP, v_KGP = kv_K2GP.chunk(2, dim=1)
            o_tHP = attention_of_ordered_keys(q_tHP, k_KGP, v_KGP, self.segments, implementation)
        return _Regather.apply(o_tHP, again)

    def _order(self, implementation: str) -> Tensor:
        """int64 [K]: where the gathered tensor has the keys that the implementation needs, in its order."""
        if implementation not in self._orders:
            order = key_order(self.segments, implementation)
            self._orders[implementation] = self._natural_T if order is None else self._natural_T[order]
        return self._orders[implementation]


def _gather(kv_t2GP: Tensor, group: Group, order_K: Tensor) -> Tensor:
    return all_gather(kv_t2GP, group).index_select(0, order_K)


class _Regathered:
    """What one layer's attention saves of the gathered keys and values becomes a note where they will be again.

    They are there from `make` to `release`, which the backward pass calls before and after that of attention, on every
    rank and the tensors saved by the kernel: how many tensors that are, and whether they are copies, depends on a
    rank's documents, and a collective must not.
    """

    def __init__(self, kv_K2GP: Tensor, kv_t2GP: Tensor, group: Group, order_K: Tensor) -> None:
        self.gathered = _storage(kv_K2GP)
        self.local = kv_t2GP.detach(), group, order_K
        self.again: Tensor | None = None

    def make(self) -> None:
        with torch.no_grad():
            self.again = _gather(*self.local)

    def release(self) -> None:
        self.again = None

    def pack(self, tensor: Tensor) -> Any:
        if _storage(tensor) != self.gathered:
            return tensor
        return tensor.shape, tensor.stride(), tensor.storage_offset()

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        assert self.again is not None, "attention is differentiated without its output"
        return self.again.as_strided(*packed)


class _Regather(torch.autograd.Function):
    """Nothing forward; backward, gathers keys and values for the attention that comes next."""

    @staticmethod
    def forward(ctx: Any, o_tHP: Tensor, again: _Regathered) -> Tensor:
        ctx.again = again
        return o_tHP.view_as(o_tHP)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.again.make()
        return grad, None


class _Release(torch.autograd.Function):
    """Nothing forward; backward, lets go of what `_Regather` brought."""

    @staticmethod
    def forward(ctx: Any, kv_K2GP: Tensor, again: _Regathered) -> Tensor:
        ctx.again = again
        return kv_K2GP.view_as(kv_K2GP)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.again.release()
        return grad, None


def _storage(tensor: Tensor) -> int:
    """What a tensor shares with its views; fake tensors have it too, but no address."""
    return tensor.untyped_storage()._cdata


class Ulysses:
    """Attention of some heads over whole rows: all-to-alls before and after it trade heads for tokens."""

    def __init__(self, documents: Documents, world: World, num_rows: int, seq_len: int) -> None:
        self.documents = documents
        self.cp = world.axis_size("cp")
        self.group = world.group("cp")
        self._order_T = gathered_order(num_rows, seq_len, self.cp, documents.cu_seqlens.device)
        self._natural_T = self._order_T.argsort()

    def __call__(self, module: Attention, q_tHP: Tensor, k_tGP: Tensor, v_tGP: Tensor) -> Tensor:
        """Raises ConfigError if cp does not divide the key/value heads."""
        num_heads, num_kv_heads = q_tHP.shape[1] // self.cp, k_tGP.shape[1] // self.cp
        if k_tGP.shape[1] % self.cp:
            raise ConfigError(
                f"parallel.cp: {self.cp} does not divide the {k_tGP.shape[1]} key/value heads of a tp rank, as ulysses "
                "needs; set cp to a divisor, or context_method to 'gather'"
            )
        # The heads of each rank next to each other: some of q, some of k, some of v.
        qkv = torch.cat([x.unflatten(1, (self.cp, -1)) for x in (q_tHP, k_tGP, v_tGP)], dim=2)
        qkv = self._exchange(qkv.transpose(0, 1).flatten(0, 1)).index_select(0, self._natural_T)
        q_THP, k_TGP, v_TGP = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        o_THP = attention(q_THP, k_TGP, v_TGP, self.documents, implementation=module.kernels.attention)
        o = self._exchange(o_THP.index_select(0, self._order_T))
        return o.unflatten(0, (self.cp, -1)).transpose(0, 1).flatten(1, 2)

    def _exchange(self, x: Tensor) -> Tensor:
        """The i-th of cp equal parts goes to rank i."""
        splits = [len(x) // self.cp] * self.cp
        return exchange(x, self.group, splits, splits)
