"""The parts of a rank's memory that depend on which layers it has, and not on where in the pipeline it stands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glmforge.config.layout import Layout
from glmforge.config.parameter_groups import is_frozen
from glmforge.config.parameters import EMBEDDING, HEAD
from glmforge.config.role import MODEL, Role
from glmforge.config.schema import RunConfig
from glmforge.plan.memory.activations import LayerActivations, Passes
from glmforge.plan.memory.shards import Shard, Sharding, StageKey, Weight, Weights
from glmforge.plan.memory.update import update_bytes
from glmforge.plan.work.operations import BF16, FP32, INT64
from glmforge.plan.work.step import micro_batch_share

_BATCH_TENSORS = 4
"""int64 tensors of a micro-batch: ids, labels, positions and documents."""


@dataclass(frozen=True)
class RankParts:
    """Of the ranks that hold the same stages; bytes.

    Attributes:
        held: parameters, gradients and optimizer state.
        kept: what a micro-batch leaves behind in each stage; `kept_by_head` the part of it that is the head's.
        forward, backward: working memory of a layer's passes, at most.
        head: working memory of the head's forward pass, in which its gradients are made.
        gathered: whole weights in the compute type while a layer is at work; `gathered_outside` those of no layer.
        sent: fp32 gradients of a layer while they are being reduced.
        layer: these and the same gradients in the compute type.
        embedding: as `layer`, of the embedding.
        head_gradients: of the head's weight, of all depths, as the forward pass makes them.
        outside: as `layer`, of what belongs to none, while the first layer's are still being reduced.
        update: working memory of the optimizer.
        buffers: of all micro-batches.
        engine: gathered and cast weights while an engine generates.
    """

    held: Shard
    kept: tuple[int, ...]
    kept_by_head: int
    forward: int
    backward: int
    head: int
    gathered: int
    gathered_outside: int
    sent: int
    layer: int
    embedding: int
    head_gradients: int
    outside: int
    update: int
    buffers: int
    engine: int


class StageParts:
    """The parts of every rank under one layout, each content once."""

    def __init__(self, config: RunConfig, layout: Layout, weights: Weights, role: Role = MODEL) -> None:
        self.config, self.layout, self.weights, self.parallel = config, layout, weights, config.parallel
        model, phase = config.model, config.phases[0]
        self.itemsize, self.role = BF16 if config.precision.compute == "bf16" else FP32, role
        self.micro_batches = layout.num_micro_batches(phase)
        self.rows = layout.rank_batch_size(phase) // self.micro_batches
        self.num_mtp = model.num_nextn_predict_layers if phase.mtp_loss_weight and role.predicts_ahead else 0
        self.layers = LayerActivations(
            model,
            config.parallel,
            micro_batch_share(config, layout),
            self.rows,
            phase.seq_len,
            self.itemsize,
            phase.aux_loss_weight > 0,
            role,
            model.lm_head
            and role.trains_all
            and not is_frozen(EMBEDDING if model.tie_word_embeddings else HEAD, config.optim),
            weights.readers,
        )
        self.sharding = Sharding(model, layout, self.itemsize)
        self.shards, self.first, self.last = weights.shards(self.sharding)
        self.keys = weights.stage_keys(model, layout)
        self._ranks: dict[tuple[StageKey, ...], RankParts] = {}

    def of(self, stages: Sequence[int]) -> RankParts:
        """Of a rank that holds the stages of these numbers."""
        keys = tuple(self.keys[index] for index in stages)
        if keys not in self._ranks:
            self._ranks[keys] = self._parts(keys)
        return self._ranks[keys]

    def _parts(self, keys: Sequence[StageKey]) -> RankParts:
        held = sum((self._shard(key) for key in keys), Shard())
        kinds = {kind for kinds, _, _ in keys for kind, _ in kinds}
        layers = [self._layer(kind) for kind in kinds]
        embeds, heads = any(key[1] for key in keys), any(key[2] for key in keys)
        outside = self.first * embeds + self.last * heads
        depths = 1 + self.num_mtp
        return RankParts(
            held,
            tuple(self._kept(key) for key in keys),
            depths * self.layers.head.kept * heads,
            max((layer.forward for layer in layers), default=0),
            max((layer.backward for layer in layers), default=0),
            self.layers.head.forward * heads,
            held.gathered if not self.parallel.reshards_after_forward else self._gathered(outside, kinds),
            held.gathered if not self.parallel.reshards_after_forward else outside.gathered,
            max((self.shards[kind].unreduced for kind in kinds), default=0),
            max((_reduced(self.shards[kind]) for kind in kinds), default=0),
            _reduced(self.first) * embeds,
            depths * self.layers.head_gradient * heads,
            _reduced(outside) + self.shards[self.weights.kind_of_layer[0]].unreduced,
            update_bytes(self._weights_of(keys), self.sharding),
            self._buffers(keys),
            self._engine(keys),
        )

    def _shard(self, key: StageKey, *, with_mtp: bool = True) -> Shard:
        kinds, has_embedding, has_head = key
        run = [(kind, number) for kind, number in kinds if with_mtp or not self.weights.kinds[kind][0].row.mtp]
        total = sum((self.shards[kind] * number for kind, number in run), Shard())
        return total + self.first * has_embedding + self.last * has_head

    def _engine(self, keys: Sequence[StageKey]) -> int:
        """All weights that run, or as many as may be kept and the largest layer of the others."""
        run = sum((self._shard(key, with_mtp=False) for key in keys), Shard())
        needed, most = run.gathered + run.casts, self.role.kept_bytes
        if most is None or needed <= most:
            return needed
        return most + max(self.shards[kind].gathered for kinds, _, _ in keys for kind, _ in kinds)

    def _kept(self, key: StageKey) -> int:
        """By a micro-batch in a stage."""
        kinds, has_embedding, has_head = key
        depths, layers = 1 + self.num_mtp, self.layers
        kept = sum(number * self._layer(kind).kept for kind, number in kinds)
        kept += depths * (layers.embedding.kept * has_embedding + layers.head.kept * has_head)
        if self.layout.pp > 1:  # what is sent on is kept until its gradient comes back
            kept += ((not has_head) + self.num_mtp * has_embedding) * layers.hidden_bytes
        return kept

    def _layer(self, kind: int) -> Passes:
        rows = [weight.row for weight in self.weights.kinds[kind]]
        layers = self.layers
        if rows[0].mtp:
            passes = layers.mtp if self.num_mtp else Passes(0, 0, 0)
        else:
            passes = layers.moe if any(row.expert for row in rows) else layers.dense
        if self.parallel.recompute in ("none", "budget"):
            passes = Passes(passes.kept + self.shards[kind].casts, passes.forward, passes.backward)
        made = max(map(self.sharding.made_bytes, rows))
        return Passes(passes.kept, passes.forward + made, passes.backward + made)

    def _gathered(self, outside: Shard, kinds: set[int]) -> int:
        """A layer's, those of the next ones, and those of no layer."""
        largest = max((self.shards[kind].gathered for kind in kinds), default=0)
        return outside.gathered + largest * (1 + self.parallel.prefetch_layers)

    def _weights_of(self, keys: Sequence[StageKey]) -> Iterator[Weight]:
        for kinds, has_embedding, has_head in keys:
            for kind, _ in kinds:
                yield from self.weights.kinds[kind]
            yield from self.weights.first if has_embedding else ()
            yield from self.weights.last if has_head else ()

    def _buffers(self, keys: Sequence[StageKey]) -> int:
        """Batches, and what torch receives from other stages into, both made for all micro-batches beforehand."""
        tokens = self.rows * self.config.phases[0].seq_len
        batch = _BATCH_TENSORS * INT64 * tokens
        received = 0
        if self.layout.pp > 1:
            neighbours = sum((not has_embedding) + (not has_head) for _, has_embedding, has_head in keys)
            received = neighbours * self.layers.hidden_bytes * (1 + self.num_mtp)
        return self.micro_batches * (batch + received)


def _reduced(shard: Shard) -> int:
    """Whole gradients in the compute type, and in fp32 as they are sent."""
    return shard.gathered + shard.unreduced
