"""How long an optimizer step of a whole job takes, what it waits for, and what would make it shorter.

A pipeline's passes are put in the order of its schedule and timed (`glmforge.plan.time.simulate`); without a pipeline
there is one rank to look at. Then gradients are reduced, as far as that was not hidden behind other work, and the
optimizer updates the weights. Ranks of the same pipeline place are alike: experts get their share of tokens times
`imbalance`, documents are as long as sequences unless `mean_attended` says otherwise.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from glmforge.config.layout import Layout
from glmforge.config.pipeline import stages_per_rank
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.plan.machine.collectives import Group, LinkBytes, collective_seconds, link_bytes
from glmforge.plan.machine.machine import Machine
from glmforge.plan.machine.measured import CollectiveKind
from glmforge.plan.machine.provenance import Provenance, least_sure
from glmforge.plan.serving.on_shards import rollout_on_shards
from glmforge.plan.stages.rollout_batch import RolloutBatch
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage
from glmforge.plan.time.overheads import INTERVAL
from glmforge.plan.time.piece import all_pieces
from glmforge.plan.time.pieces import Kernels, Situation, pass_seconds, piece_time
from glmforge.plan.time.schedules import Order, pipeline_orders
from glmforge.plan.time.shared_cores import parts_on_cores
from glmforge.plan.time.simulate import Span, simulate, spans
from glmforge.plan.time.stage_passes import RankTime, rank_time
from glmforge.plan.time.update import exchange_group
from glmforge.plan.work.operations import BF16
from glmforge.plan.work.step import micro_batch_share
from glmforge.plan.work.traffic import ranks_per_node, step_traffic

_NOTHING = 1e-9
"""Seconds below which a part is rounding."""
_COMPUTED = ("compute", "recompute", "imbalance", "update", "host")


class LinkUse(NamedTuple):
    """What a rank sends along an axis, or for Muon's "exchange", in a step, and over which links.

    Attributes:
        bytes: of its collectives, the larger of input and output of each.
        sent: by the rank over NVLink (`inside`) and over its adapter (`outside`).
        into_node: by all ranks together into each node from others.
        seconds: what the links take for it, hidden behind computation or not.
    """

    axis: str
    kind: CollectiveKind
    group: Group
    bytes: float
    sent: LinkBytes
    into_node: float
    seconds: float


@dataclass(frozen=True)
class StepTime:
    """A step of the first phase.

    Attributes:
        parts: seconds of the pipeline rank that works longest, by what it does ("compute", "recompute", "imbalance",
            "update", "checkpoint", "offload") or waits for ("bubble", Muon's "exchange", and the axis of what is
            communicated while nothing is computed); they add up to `seconds`. A checkpoint counts with its share.
            Of a stage that samples also "rollout", and "scoring", forward passes over what was sampled.
            Of ranks that share cores see `glmforge.plan.time.shared_cores`.
        provenance: of each part.
        tokens: of the step, on all ranks.
        model_flops: of the step, on all ranks, as utilisation counts them.
    """

    machine: Machine
    layout: Layout
    parts: dict[str, float]
    provenance: dict[str, Provenance]
    tokens: int
    model_flops: float
    _run: tuple[RunConfig, TrainingStage] = field(repr=False)
    _ranks: tuple[RankTime, ...] = field(repr=False)
    _message: float = field(repr=False)

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def factor(self) -> float | None:
        """Four of five steps take between `seconds` divided by it and times it; None where ranks share cores, and of a
        step with a rollout, whose time is a bound."""
        return INTERVAL if self.machine.cores is None and "rollout" not in self.parts else None

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks."""
        return self.tokens / self.seconds

    @property
    def utilisation(self) -> float:
        """The model's FLOPs as a share of all devices' bf16 peak (MFU)."""
        peak = self.layout.world_size * self.machine.accelerator.bf16_flops
        return self.model_flops / self.seconds / peak

    @property
    def bottleneck(self) -> str:
        """The part that takes longest beside computing what the model asks for."""
        others = {part: seconds for part, seconds in self.parts.items() if part != "compute"}
        largest = max(others, key=others.__getitem__, default="compute")
        return largest if others and others[largest] > 0.1 * self.seconds else "compute"

    @property
    def slowest(self) -> int:
        """The pipeline rank that works longest."""
        return max(range(len(self._ranks)), key=lambda rank: self._ranks[rank].busy)

    @cached_property
    def links(self) -> list[LinkUse]:
        """What a rank of the slowest pipeline place sends, axis by axis."""
        return self.links_at(self.slowest)

    def links_at(self, pp_rank: int) -> list[LinkUse]:
        """What a rank of any pipeline place sends, axis by axis."""
        exchanged = self._ranks[pp_rank].update.exchanged
        return _links(*self._run, self.layout, self.machine, pp_rank, exchanged)

    @cached_property
    def timeline(self) -> list[Span]:
        """What every pipeline rank does when, from the step's first pass to the end of its update; of ranks that share
        cores, as if each had one of its own."""
        found = spans(self._orders, _times(self._orders, self._ranks, self._message))
        ready = max(self._stops)
        for rank, (time, done) in enumerate(zip(self._ranks, self._stops, strict=True)):
            found.append(Span(rank, "reduce", 0, 0, done - time.reduce, done))
            stop = ready
            for task, seconds in _after_passes(self._run[0], self._ranks).items():
                found.append(Span(rank, task, 0, 0, stop, stop + seconds))
                stop += seconds
        return [span for span in found if span.stop > span.start]

    @cached_property
    def _orders(self) -> tuple[Order, ...]:
        return _orders(self._run[0], self.layout)

    @cached_property
    def _stops(self) -> list[float]:
        return _stops(self._orders, self._ranks, self._message)


def predict_step(
    config: RunConfig,
    layout: Layout,
    machine: Machine,
    kernels: Kernels | None = None,
    stage: TrainingStage = PRETRAINING,
    *,
    imbalance: float = 1.0,
    mean_attended: int | None = None,
) -> StepTime:
    """Of the first phase of `config`, in which `stage` says what is trained.

    `kernels`: those that the configuration asks for if None. `imbalance`: rows of the busiest ep rank as a multiple of
    an even share. `mean_attended` as for `train_flops_per_token`. Raises `ConfigError` for what is not counted: fp32,
    and fp8 on a device without it.
    """
    if stage.rollout is not None:
        options = {"kernels": kernels, "imbalance": imbalance, "mean_attended": mean_attended}
        return _with_rollout(config, layout, machine, stage, stage.rollout, **options)
    phase = config.phases[0]
    situation = _situation(config, layout, machine, kernels or Kernels.of(config), stage, imbalance, mean_attended)
    pieces = {piece: piece_time(piece, situation) for piece in dict.fromkeys(all_pieces(config, situation.model))}
    ranks = tuple(rank_time(situation, pieces, pp_rank) for pp_rank in range(layout.pp))
    message = _message_seconds(situation)
    before_update = _last_stop(config, layout, ranks, message)
    slowest = max(ranks, key=lambda rank: rank.busy)
    parts = dict(slowest.parts)
    parts["bubble"] = max(0.0, before_update - slowest.busy)
    parts |= _after_passes(config, ranks)
    if machine.cores is not None:
        parts = parts_on_cores(config, layout, machine, situation.kernels.implementation)
    found = {part: seconds for part, seconds in parts.items() if seconds > _NOTHING}
    per_token = train_flops_per_token(
        config.model, mean_attended or phase.seq_len, phase.mtp_loss_weight > 0, stage, config.optim
    )
    return StepTime(
        machine,
        layout,
        found,
        {part: _provenance(part, machine) for part in found},
        phase.tokens_per_step,
        per_token * phase.tokens_per_step,
        (config, stage),
        ranks,
        message,
    )


def _with_rollout(
    config: RunConfig,
    layout: Layout,
    machine: Machine,
    stage: TrainingStage,
    rollout: RolloutBatch,
    **options: Any,
) -> StepTime:
    """The step of what is trained, with two parts more: "rollout", and "scoring", the forward passes beside it."""
    trained = tuple(replace(role, forwards=0) for role in stage.roles if role.is_trained)
    whole = predict_step(config, layout, machine, stage=replace(stage, rollout=None), **options)
    training = predict_step(config, layout, machine, stage=TrainingStage(stage.name, trained), **options)
    found = {
        "scoring": max(0.0, whole.seconds - training.seconds),
        "rollout": rollout_on_shards(config, layout, machine, rollout).seconds,
    }
    found = {part: seconds for part, seconds in found.items() if seconds > _NOTHING}
    sure = least_sure((machine.compute_provenance, machine.link_provenance))
    return replace(whole, parts=training.parts | found, provenance=training.provenance | dict.fromkeys(found, sure))


def least_seconds(config: RunConfig, layout: Layout, machine: Machine, stage: TrainingStage = PRETRAINING) -> float:
    """A bound that no step of the layout is faster than, in a small part of the time that `predict_step` takes.

    What all pipeline ranks compute and wait for within layers, divided by their number: no schedule beats even shares
    without a bubble, and FSDP's traffic and the update come on top. Raises `ConfigError` as `predict_step` does.
    """
    situation = _situation(config, layout, machine, Kernels.of(config), stage, 1.0, None)
    numbers = Counter(all_pieces(config, situation.model))
    micro_batch = sum(number * sum(pass_seconds(piece, situation).values()) for piece, number in numbers.items())
    return micro_batch * layout.num_micro_batches(config.phases[0]) / layout.pp


def _situation(
    config: RunConfig,
    layout: Layout,
    machine: Machine,
    kernels: Kernels,
    stage: TrainingStage,
    imbalance: float,
    mean_attended: int | None,
) -> Situation:
    if config.precision.compute != "bf16":
        raise ConfigError("precision.compute: the time of a step is predicted for bf16 only; set it to bf16")
    stage = replace(stage, roles=tuple(role for role in stage.roles if role.has_passes))
    for role in stage.roles:
        if role.model is not None and role.model != config.model:
            raise ConfigError(
                f"stage {stage.name}: role '{role.name}' has a model of another size, and step time is predicted for "
                "models of one size only; remove --gpu to see the memory"
            )
    if kernels.fp8_maps and machine.accelerator.fp8_flops is None:
        raise ConfigError(
            f"precision.low_precision: {machine.accelerator.name} has no fp8; set it to 'none', or choose another GPU"
        )
    # An expert takes no more than its capacity.
    capacity = config.phases[0].capacity_factor
    imbalance = imbalance if capacity is None else min(imbalance, capacity)
    share = micro_batch_share(config, layout, mean_attended)
    return Situation(config, config.model.model_dump_json(), layout, machine, share, kernels, imbalance, stage)


_ROUNDS = 8
"""Of as many micro-batches as a pipeline has ranks: after them a further round takes as long as the one before, to half
a percent of a step where stages take unequally long."""


def _last_stop(config: RunConfig, layout: Layout, ranks: tuple[RankTime, ...], message: float) -> float:
    """When the last rank has reduced its gradients. Of many rounds of micro-batches some are simulated."""
    number = layout.num_micro_batches(config.phases[0])
    rounds = max(1, number // layout.pp)
    per_round = number // rounds
    few = _ROUNDS * per_round, (_ROUNDS + 1) * per_round
    if number <= few[1]:
        return max(_stops(_orders(config, layout), ranks, message))
    earlier, later = (max(_stops(_orders(config, layout, some), ranks, message)) for some in few)
    return later + (number - few[1]) / per_round * (later - earlier)


def _orders(config: RunConfig, layout: Layout, micro_batches: int | None = None) -> tuple[Order, ...]:
    """Without a pipeline a rank goes through its micro-batches one by one."""
    micro_batches = micro_batches or layout.num_micro_batches(config.phases[0])
    if layout.pp == 1:
        return pipeline_orders("1f1b", 1, 1, micro_batches)
    return pipeline_orders(
        config.parallel.pipeline_schedule, layout.pp, stages_per_rank(config.parallel), micro_batches
    )


def _times(orders: tuple[Order, ...], ranks: tuple[RankTime, ...], message: float) -> list[list[tuple[float, float]]]:
    seconds = {key: value for rank in ranks for key, value in rank.passes.items()}
    return simulate(orders, seconds, message, [rank.start for rank in ranks])


def _stops(orders: tuple[Order, ...], ranks: tuple[RankTime, ...], message: float) -> list[float]:
    """When each rank has reduced its gradients."""
    times = _times(orders, ranks, message)
    return [mine[-1][1] + rank.reduce for mine, rank in zip(times, ranks, strict=True)]


def _after_passes(config: RunConfig, ranks: tuple[RankTime, ...]) -> dict[str, float]:
    """What all ranks do together once the last has its gradients, each of it as long as on the rank that has most.

    A checkpoint in the background stops training for a copy in the host's memory, one in the foreground for as long as
    that at the least: how fast files are written is not known here.
    """
    checkpoint = config.checkpoint
    saves = sum(1 / every for every in (checkpoint.every_steps, checkpoint.ephemeral_every_steps) if every)
    return {
        "update": max(rank.update.update for rank in ranks),
        "exchange": max(rank.update.exchange for rank in ranks),
        "checkpoint": saves * max(rank.update.snapshot for rank in ranks),
    }


def _message_seconds(situation: Situation) -> float:
    """Of what a micro-batch's activations, or their gradients, take to the next pipeline rank."""
    model = situation.config.model
    carried = 1 + model.num_nextn_predict_layers * situation.stage.roles[0].has_vocabulary
    size = BF16 * situation.share.normed * model.hidden_size * carried
    return collective_seconds("send", size, situation.group("pp"), situation.machine)


def _links(
    config: RunConfig, stage: TrainingStage, layout: Layout, machine: Machine, pp_rank: int, exchanged: float
) -> list[LinkUse]:
    """`exchanged` are bytes that the rank sends for Muon."""
    sent: list[tuple[str, CollectiveKind, Group, float]] = []
    for traffic in step_traffic(config, layout, pp_rank, stage):
        near = ranks_per_node(layout, traffic.axis, machine.ranks_per_node)
        sent.append((traffic.axis, traffic.kind, Group(traffic.num_ranks, near), traffic.bytes))
    if exchanged:
        sent.append(("exchange", "all_to_all", exchange_group(layout, machine), exchanged))
    found = []
    for axis, kind, group, num_bytes in sent:
        one_way = num_bytes / (2 if kind == "send" else 1)  # half of a pipeline's messages are received
        over = link_bytes(kind, one_way, group)
        seconds = collective_seconds(kind, one_way, group, machine)
        into_node = over.outside * min(machine.ranks_per_node, layout.world_size)
        found.append(LinkUse(axis, kind, group, num_bytes, over, into_node, seconds))
    return found


def _provenance(part: str, machine: Machine) -> Provenance:
    if part in _COMPUTED:
        return machine.compute_provenance
    if part in ("offload", "checkpoint"):
        return Provenance.ASSUMED
    if part == "bubble":
        return least_sure((machine.compute_provenance, machine.link_provenance))
    return machine.link_provenance
