"""Generation from the model as the trainer has it, on every layout.

Ranks that compute together what one of them could not alone have to do the same: all ranks step together (`Engine.step`
is a collective), and a rank that has nothing to do gives its weights and its experts to those that have. What each
axis means for requests:

    dp_replicate, dp_shard, cp   ranks have requests of their own: cp shares single rows in training, but a token of
                                 generation is not worth sharing, so its ranks are further data ranks here
    ep                           goes across those ranks: tokens of one rank's requests visit experts on others
    tp, pp                       ranks share requests: they are given the same ones in the same order and choose the
                                 same tokens, since all of them see the same logits to the last bit

Where all weights that run are whole on a rank, as they lie or when they are gathered, a step is one call of the native
kernels for all layers, as of an unsharded model (`native.py`), and gives the same logits to the last bit.

A pp rank caches keys and values of its own layers, a tp rank those of its own heads. Stages work one after another, so
a step takes as long as on one rank with all layers; pp is memory here, not speed.

Training must not notice: between `session`s the model is as it was, and a session draws no random number.

Shapes: T tokens, L tokens whose logits are wanted, V vocab_size, M MoE layers, K experts of a token.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.generate.kept_weights import KeptWeights, WeightBytes
from glmforge.generate.native import NativeModel, fits
from glmforge.generate.record import recorded_experts
from glmforge.generate.runner import PagedAttend, PagedCache
from glmforge.generate.step import StepTokens
from glmforge.model.attention import Attend, Attention
from glmforge.model.head import Heads, NoLMHeadError
from glmforge.model.inputs import NO_TOKEN, ModelInputs, Rows
from glmforge.model.transformer import Activations, GlmMoe
from glmforge.parallel.model import ParallelModel


class ShardedModel:
    """The runner of a `ParallelModel`. All ranks make it together and call its methods together.

    Args:
        model: as it is trained.
        max_weight_bytes: what weights may take on each rank during a session, besides its shards; None: as much as
            spares gathering any of them twice.

    Attributes:
        share, num_shares: this rank has requests number `share` of every `num_shares`, or others of its own. Ranks
            of one tp and pp group have the same.
        is_first: whether this rank is the first one of its share.
        weight_bytes: what the present session, or the last one, takes.
    """

    adapters = ()

    def __init__(self, model: ParallelModel, max_weight_bytes: int | None = None) -> None:
        if not model.config.lm_head:
            raise NoLMHeadError(model.config.heads)
        self.model, self.config, self.device = model, model.config, model.world.device
        world = model.world
        self.share = world.data_rank * world.axis_size("cp") + world.axis_rank("cp")
        self.num_shares = world.layout.data_ranks * world.axis_size("cp")
        self.is_first = world.axis_rank("tp") == 0 and world.axis_rank("pp") == 0
        self.shares_requests = world.axis_size("tp") * world.axis_size("pp") > 1
        self.experts_TMK: Tensor | None = None
        self.weight_bytes = WeightBytes(0, 0)
        self._weights = KeptWeights(model, max_weight_bytes)
        self._dtype = model.parts[0].compute_dtype
        self._layers = [layer.self_attn.layer for part in model.parts for layer in part.trunk_layers]
        self._most_layers, self._last_stage = self._agree_on_stages()
        self._in_session = False
        self._native: NativeModel | None = None
        self._way_is_chosen = False

    @property
    def is_collective(self) -> bool:
        return self.model.world.size > 1

    def anyone(self, busy: bool) -> bool:
        flag = torch.tensor(float(busy), device=self.device)
        return bool(self.model.world.sum(flag) > 0)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Steps are taken in here, and no training steps. The weights are those at its beginning, unless
        `weights_changed` says that there are others."""
        # What a few tokens need is not worth compiling for each number of them.
        compiling = torch.compiler.set_stance("force_eager") if self.model.parallel.compile else nullcontext()
        with self.model.evaluating():
            # Weights that lie whole are read where they lie: nothing must be kept.
            self.weight_bytes = WeightBytes(0, 0) if self._fits() else self._weights.begin()
            self._in_session, self._way_is_chosen = True, False
            try:
                with compiling:
                    yield
            finally:
                self._native, self._in_session = None, False
                self._weights.end()

    def weights_changed(self) -> None:
        self._native, self._way_is_chosen = None, False
        self._weights.refresh()

    def differing_weights(self) -> list[str]:
        """Weights of the session that are not those that are trained, by name; see `KeptWeights`. Collective."""
        return self._weights.differing()

    def weights_differ(self, *, closely: bool) -> bool:
        """A rank knows its shards only, and others have to restart with it: they are notified by `weights_changed`."""
        return False

    def page_bytes(self, page_size: int) -> int:
        """Of the pp rank that has most layers: all have as many pages."""
        return 2 * self._most_layers * page_size * self._kv_heads * self.config.head_dim * self._dtype.itemsize

    def allocate(self, num_pages: int, page_size: int) -> None:
        shape = (num_pages, self._kv_heads, page_size, self.config.head_dim)
        self.cache = PagedCache(self._layers, shape, self._dtype, self.device)

    def copy_page(self, source: int, target: int) -> None:
        self.cache.copy_page(source, target)

    @torch.no_grad()
    def run(self, tokens: StepTokens) -> Tensor:
        assert self._in_session, "runs in `with runner.session()`"
        if not self._way_is_chosen:
            self._choose_way()
        return self._run_modules(tokens) if self._native is None else self._run_native(self._native, tokens)

    def _choose_way(self) -> None:
        """Gather the weights, if they are whole then, and have the native kernels run them, if they can. Collective."""
        self._way_is_chosen = True
        world = self.model.world
        if world.axis_size("tp") * world.axis_size("pp") * world.axis_size("ep") > 1 or self.weight_bytes.passing:
            return
        if self.device.type == "cpu":
            self._weights.gather()
            if self._fits():
                self._native = NativeModel(self.model.parts[0], self.cache.keys, self.cache.values)

    def _fits(self) -> bool:
        return self.model.pipeline is None and fits(self.model.parts[0], with_mtp=False)

    def _run_native(self, native: NativeModel, tokens: StepTokens) -> Tensor:
        if not len(tokens.ids_T):  # others have some
            return self._no_logits(0).float()
        logits_LV, experts_STK = native.run(tokens)
        self.experts_TMK = experts_STK[self.config.first_k_dense_replace :].transpose(0, 1)
        return logits_LV

    def _run_modules(self, tokens: StepTokens) -> Tensor:
        inputs = self._inputs(tokens)
        made: list[Tensor] = []

        def head(h_TD: Tensor, heads: Heads, depth: int) -> Tensor:
            wanted_L = tokens.wanted_L
            return heads.lm.whole_logits(h_TD, wanted_L) if len(wanted_L) else self._no_logits(0)

        def run(part: GlmMoe, _: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
            output = part(inputs, received, head=head, with_mtp=False)
            if output.is_last:
                made.append(output.main)
            return output.router.aux_loss, output.activations

        rows = (self.model.world.axis_size("cp"), len(inputs.ids_T))  # each cp rank has T tokens
        with recorded_experts(self.model.parts if tokens.wants_experts else []) as experts:
            self.model.run(run, 1, rows, num_mtp=0, backward=False)
        self.experts_TMK = (
            self._all_experts(experts, len(inputs.ids_T))[: len(tokens.ids_T)] if tokens.wants_experts else None
        )
        logits_LV = self._from_last_stage(made[0] if made else self._no_logits(len(tokens.wanted_L)))
        return logits_LV if logits_LV.dtype == torch.float64 else logits_LV.float()

    def _inputs(self, tokens: StepTokens) -> ModelInputs:
        """With tokens that fill up what tp ranks share in equal parts: one for each of them at least, so that a rank
        without work takes part."""
        num_tokens, tp = len(tokens.ids_T), self.model.world.axis_size("tp")
        missing = max(-num_tokens % tp, tp - num_tokens)
        ids_T = torch.cat((tokens.ids_T, tokens.ids_T.new_full((missing,), NO_TOKEN)))
        positions_T = torch.cat((tokens.positions_T, tokens.positions_T.new_zeros(missing)))
        rows = Rows(ids_T.new_zeros(len(ids_T) // tp), 1, len(ids_T))
        attend = _WithoutFiller(PagedAttend(self.cache, tokens.paged), num_tokens)
        return ModelInputs(ids_T, ids_T.new_empty(0, len(ids_T)), positions_T, rows, attend)

    def _all_experts(self, experts: list[Tensor], num_tokens: int) -> Tensor:
        """[T, M, K] on all ranks that share requests, of what this rank's routers say: tp ranks route tokens of their
        own, pp ranks have layers of their own."""
        world, config = self.model.world, self.config
        here = [number for number in sorted(self.model.moe_layers()) if number < config.num_moe_layers]
        shape = (num_tokens, config.num_moe_layers, config.num_experts_per_tok)
        experts_TMK = torch.zeros(shape, dtype=torch.int32, device=self.device)
        own_TMK = experts_TMK.chunk(world.axis_size("tp"))[world.axis_rank("tp")]
        for number, experts_tK in zip(here, experts, strict=True):
            own_TMK[:, number] = experts_tK.int()
        return world.sum(experts_TMK, "tp", "pp")

    @property
    def _kv_heads(self) -> int:
        return self.config.num_key_value_heads // self.model.world.axis_size("tp")

    def _agree_on_stages(self) -> tuple[int, int]:
        """The most trunk layers that a pp rank has, and the one that has the head."""
        group, here = self.model.world.group("pp"), self.model.world.axis_rank("pp")
        has_head = any(part.section.last for part in self.model.parts)
        facts = torch.tensor([len(self._layers), here if has_head else -1], device=self.device)
        if group is not None:
            dist.all_reduce(facts, dist.ReduceOp.MAX, group=group)
        most_layers, last_stage = facts.tolist()
        return most_layers, last_stage

    def _from_last_stage(self, logits_LV: Tensor) -> Tensor:
        """On all pp ranks what the one with the head has; the others give room for it."""
        group = self.model.world.group("pp")
        if group is not None and len(logits_LV):
            logits_LV = logits_LV.contiguous()
            dist.broadcast(logits_LV, group=group, group_src=self._last_stage)
        return logits_LV

    def _no_logits(self, num_tokens: int) -> Tensor:
        return torch.empty(num_tokens, self.config.vocab_size, dtype=self._dtype, device=self.device)


class _WithoutFiller:
    """`attend` for the first `num_tokens` tokens; those that fill up get zeros."""

    def __init__(self, attend: Attend, num_tokens: int) -> None:
        self.attend, self.num_tokens = attend, num_tokens

    def __call__(self, module: Attention, q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor) -> Tensor:
        number = self.num_tokens
        if number == len(q_THP):
            return self.attend(module, q_THP, k_TGP, v_TGP)
        o_THP = torch.zeros_like(q_THP)
        if number:
            o_THP[:number] = self.attend(module, q_THP[:number], k_TGP[:number], v_TGP[:number])
        return o_THP
