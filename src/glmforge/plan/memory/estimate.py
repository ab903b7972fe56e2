"""The peak of every pipeline rank of a layout: which parts live at which moment of a step, added up.

A step has four moments that can be the fullest: the last forward pass before backward passes begin to free what forward
passes kept, the backward pass that follows it, the reduction of gradients, and the optimizer's update. The peak is that
of the fullest. `glmforge.dryrun` runs the step itself; how far the two are apart stands in docs/plan.md.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glmforge.config.layout import Layout
from glmforge.config.pipeline import stages_per_rank
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import StageContent, stages_of_pp_rank
from glmforge.plan.memory.activations import LayerActivations, Passes
from glmforge.plan.memory.in_flight import passes_in_flight
from glmforge.plan.memory.purposes import Memory, Purpose
from glmforge.plan.memory.shards import Shard, Sharding, Weight, Weights
from glmforge.plan.memory.update import update_bytes
from glmforge.plan.work.operations import BF16, FP32, INT64
from glmforge.plan.work.step import micro_batch_share

_BATCH_TENSORS = 4
"""int64 tensors of a micro-batch: ids, labels, positions and documents."""


@dataclass(frozen=True)
class PlaceMemory:
    """What a rank at a place of the pipeline needs at most, `moment` says when, and of host memory beside."""

    pp_rank: int
    at_peak: Memory
    moment: str
    host_bytes: int = 0

    @property
    def peak(self) -> int:
        return self.at_peak.total()


@dataclass(frozen=True)
class MemoryEstimate:
    """Of all pipeline ranks, in order; the ranks of a stage are alike, but for shards that are smaller than others."""

    places: tuple[PlaceMemory, ...]

    @property
    def fullest(self) -> PlaceMemory:
        """The place that needs most, the first of several."""
        return max(self.places, key=lambda place: place.peak)

    @property
    def peak(self) -> int:
        """Bytes of the rank that needs most."""
        return self.fullest.peak


def estimate_memory(config: RunConfig, layout: Layout) -> MemoryEstimate:
    """Of a step of the first phase of `config`."""
    return MemoryModel(config).estimate(config, layout)


class MemoryModel:
    """Estimates for one run under many layouts: what does not depend on the layout is made once."""

    def __init__(self, config: RunConfig) -> None:
        self.weights = Weights(config)

    def estimate(self, config: RunConfig, layout: Layout) -> MemoryEstimate:
        """`config` may differ in `parallel` and in the batch from the one that the model was made of."""
        step = _Step(config, layout, self.weights)
        return MemoryEstimate(tuple(step.place(pp_rank) for pp_rank in range(layout.pp)))


@dataclass(frozen=True)
class _Stage:
    """A stage of the pipeline: its parameters, and a micro-batch's way through it."""

    content: StageContent
    shard: Shard
    passes: Passes


class _Step:
    """One step under one layout."""

    def __init__(self, config: RunConfig, layout: Layout, weights: Weights) -> None:
        self.config, self.layout, self.weights, self.parallel = config, layout, weights, config.parallel
        phase = config.phases[0]
        itemsize = BF16 if config.precision.compute == "bf16" else FP32
        self.itemsize = itemsize
        self.sharding = Sharding(config.model, layout, itemsize)
        self.micro_batches = layout.num_micro_batches(phase)
        self.rows = layout.rank_batch_size(phase) // self.micro_batches
        self.num_mtp = config.model.num_nextn_predict_layers if phase.mtp_loss_weight else 0
        self.layers = LayerActivations(
            config.model,
            config.parallel,
            micro_batch_share(config, layout),
            self.rows,
            phase.seq_len,
            itemsize,
            phase.aux_loss_weight > 0,
        )
        self.shard_of_kind = [self.sharding.of(kind) for kind in weights.kinds]
        self.first, self.last = self.sharding.of(weights.first), self.sharding.of(weights.last)

    def place(self, pp_rank: int) -> PlaceMemory:
        stages = [self._stage(content) for content in stages_of_pp_rank(self.config, self.layout, pp_rank)]
        held = sum((stage.shard for stage in stages), Shard())
        always: Memory = Counter({Purpose.WEIGHTS: held.weights, Purpose.OPTIMIZER: held.optimizer})
        gradients = held.gradients
        host = 0
        if self.parallel.cpu_offload:
            host, always, gradients = held.weights + held.gradients + held.optimizer, Counter(), 0
        always[Purpose.BUFFERS] = self._buffers(stages)
        best, moment = max(
            ((memory, name) for name, memory in self._moments(stages, held, gradients, pp_rank)),
            key=lambda pair: pair[0].total(),
        )
        return PlaceMemory(pp_rank, always + best, moment, host)

    def _moments(
        self, stages: Sequence[_Stage], held: Shard, gradients: int, pp_rank: int
    ) -> Iterator[tuple[str, Memory]]:
        """Beside what is always there."""
        piped = self.layout.pp > 1
        accumulates = not piped and self.micro_batches > 1
        per_rank = stages_per_rank(self.parallel)
        schedule = self.parallel.pipeline_schedule
        flights = passes_in_flight(schedule, self.layout.pp, pp_rank, per_rank, self.micro_batches)
        kept = max(
            sum(count * stage.passes.kept for count, stage in zip(flight, stages, strict=True)) for flight in flights
        )
        unit = max(self._unit(stage) for stage in stages)
        whole = held.unreduced
        keeps_whole = piped or (self.parallel.reduce_gradients == "last_micro_batch" and self.micro_batches > 1)
        unreduced = whole if keeps_whole else 0
        early = gradients if accumulates and not keeps_whole else 0
        yield (
            "forward",
            Counter(
                {
                    Purpose.GRADIENTS: early,
                    Purpose.ACTIVATIONS: kept,
                    Purpose.GATHERED: self._gathered(stages, held),
                    Purpose.UNREDUCED: unreduced,
                    Purpose.WORKING: max(stage.passes.forward for stage in stages),
                }
            ),
        )
        yield (
            "backward",
            Counter(
                {
                    Purpose.GRADIENTS: early,
                    Purpose.ACTIVATIONS: kept,
                    Purpose.GATHERED: self._gathered(stages, held),
                    Purpose.UNREDUCED: unreduced,
                    Purpose.WORKING: max(stage.passes.backward for stage in stages) + (0 if keeps_whole else unit),
                }
            ),
        )
        if keeps_whole:
            yield (
                "reduction",
                Counter({Purpose.GRADIENTS: gradients, Purpose.UNREDUCED: whole, Purpose.WORKING: unit}),
            )
        working = update_bytes(self._weights_of(stages), self.sharding)
        yield "update", Counter({Purpose.GRADIENTS: gradients, Purpose.WORKING: working})

    def _gathered(self, stages: Sequence[_Stage], held: Shard) -> int:
        """In a pipeline weights stay gathered; otherwise those of a layer, of the next ones, and of no layer."""
        if not self.parallel.reshards_after_forward:
            return held.gathered
        layers = [self.shard_of_kind[kind].gathered for kind in self.weights.kind_of_layer]
        outer = self.first.gathered + self.last.gathered
        return outer + max(layers, default=0) * min(len(layers), 1 + self.parallel.prefetch_layers)

    def _unit(self, stage: _Stage) -> int:
        """fp32 gradients of the largest unit that FSDP reduces at once."""
        kinds = {self.weights.kind_of_layer[layer] for layer in self._layers_of(stage.content)}
        outer = stage.content.has_embedding * self.first.unreduced + stage.content.has_head * self.last.unreduced
        return max([outer, *(self.shard_of_kind[kind].unreduced for kind in kinds)])

    def _stage(self, content: StageContent) -> _Stage:
        layers, trunk = self.layers, self.config.model.num_hidden_layers
        shard = Shard()
        kept = forward = backward = 0
        for layer in self._layers_of(content):
            shard += self.shard_of_kind[self.weights.kind_of_layer[layer]]
            if layer >= trunk and not self.num_mtp:
                continue
            is_dense = layer < self.config.model.first_k_dense_replace
            passes = layers.dense if is_dense else layers.mtp if layer >= trunk else layers.moe
            casts = self.shard_of_kind[self.weights.kind_of_layer[layer]].casts
            kept += passes.kept + (casts if self.parallel.recompute in ("none", "budget") else 0)
            forward, backward = max(forward, passes.forward), max(backward, passes.backward)
        if content.has_embedding:
            shard += self.first
            kept += (1 + self.num_mtp) * layers.embedding.kept
        if content.has_head:
            shard += self.last
            kept += (1 + self.num_mtp) * layers.head.kept
            forward, backward = max(forward, layers.head.forward), max(backward, layers.head.backward)
        if self.layout.pp > 1:  # what is sent on is kept until it comes back differentiated
            kept += (
                layers.hidden_bytes * (not content.has_head)
                + layers.hidden_bytes * self.num_mtp * content.has_embedding
            )
        return _Stage(content, shard, Passes(kept, forward, backward))

    def _layers_of(self, content: StageContent) -> range | list[int]:
        trunk = self.config.model.num_hidden_layers
        return [*range(content.start, content.stop), *range(trunk, trunk + content.num_mtp)]

    def _weights_of(self, stages: Sequence[_Stage]) -> Iterator[Weight]:
        for stage in stages:
            for kind in sorted({self.weights.kind_of_layer[layer] for layer in self._layers_of(stage.content)}):
                yield from self.weights.kinds[kind]
            if stage.content.has_embedding:
                yield from self.weights.first
            if stage.content.has_head:
                yield from self.weights.last

    def _buffers(self, stages: Sequence[_Stage]) -> int:
        """Batches, and what torch receives from other stages into, both made for all micro-batches beforehand."""
        tokens = self.rows * self.config.phases[0].seq_len
        batch = _BATCH_TENSORS * INT64 * tokens
        received = 0
        if self.layout.pp > 1:
            neighbours = sum((not stage.content.has_embedding) + (not stage.content.has_head) for stage in stages)
            received = neighbours * self.layers.hidden_bytes * (1 + self.num_mtp)
        return self.micro_batches * (batch + received)
