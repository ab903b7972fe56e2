"""What the pieces of a pipeline stage take for one micro-batch: its embedding, dense layers, MoE layers, and its head.

Many layers are alike, so a stage's time is that of its pieces, each computed once for a model, a share of the
batch and a device, and remembered: a search asks for thousands of layouts with the same layers.

Of a pass, what is computed and what is communicated within a layer (along tp, cp and ep) follow one another; FSDP's
gathers and reductions run beside them and are assembled in `glmforge.plan.time.stage_passes`.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from glmforge.config.layout import Layout
from glmforge.config.optim import ParameterRule
from glmforge.config.parallel import LowPrecisionMap
from glmforge.config.parameters import Parameter
from glmforge.config.role import Role
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.collectives import Group, collective_seconds
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.machine.machine import Machine
from glmforge.plan.machine.measured import CollectiveKind
from glmforge.plan.stages.stage import TrainingStage
from glmforge.plan.time.expected import expected_seconds
from glmforge.plan.time.overheads import FITTED, Overheads
from glmforge.plan.time.piece import Piece, content_of
from glmforge.plan.time.reached import BESIDE_COMMUNICATION, AttentionKernel, Implementation
from glmforge.plan.work.operations import BF16, FP32, Operation, Share
from glmforge.plan.work.step import held_parameters, stage_operations
from glmforge.plan.work.traffic import activation_bytes, gathered_bytes, ranks_per_node, reduced_bytes
from glmforge.plan.work.update_operations import shard_elements

Parts = dict[str, float]
"""Seconds by what a rank does: "compute", "recompute", "imbalance", or the axis of what it waits for."""

ASYNC_TP_EXPOSED = 0.3
"""Of tp's communication what remains visible where matmuls and collectives are cut into chunks that take turns."""
_CALLS = {"tp": 4, "ep": 2, "cp": 1}
"""Collectives of a layer in a pass. What a pass sends is cut into as many of one size."""


@dataclass(frozen=True)
class Kernels:
    """What a rank computes with. `fp8_weight_gradients`: of `fp8_maps` too, as others do and no run of glmforge."""

    implementation: Implementation
    attention: AttentionKernel
    fp8_maps: frozenset[LowPrecisionMap]
    fp8_weight_gradients: bool = False
    overheads: Overheads = FITTED

    @classmethod
    def of(cls, config: RunConfig) -> "Kernels":
        """What a run asks for; kernels that it leaves to the device are taken to be the plain ones."""
        kernels, precision = config.kernels, config.precision
        implementation: Implementation = "compiled" if config.parallel.compile else "eager"
        if "triton" in (kernels.permute, kernels.rms_norm, kernels.swiglu):
            implementation = "triton"
        maps = precision.low_precision_maps if precision.low_precision == "fp8" else []
        return cls(implementation, "flash3" if kernels.attention == "flash3" else "flash2", frozenset(maps))


@dataclass(frozen=True)
class Situation:
    """All that the time of a layer depends on. `model` is a name for the model that is equal for equal ones."""

    config: RunConfig = field(compare=False)
    model: str
    layout: Layout
    machine: Machine
    share: Share
    kernels: Kernels
    imbalance: float
    stage: TrainingStage

    @property
    def with_mtp(self) -> bool:
        return self.config.phases[0].mtp_loss_weight > 0

    def group(self, axis: str) -> Group:
        """The ranks along an axis."""
        near = ranks_per_node(self.layout, axis, self.machine.ranks_per_node)
        return Group(self.layout.size(axis), near)


@dataclass(frozen=True)
class PieceTime:
    """Seconds of one micro-batch. Beside the passes, FSDP gathers the piece's weights for each, and reduces its
    gradients: `gather` and `gather_again` are of a forward and of a backward pass, `reduce` of one reduction within a
    copy of the model, `replicate` of the one between copies."""

    forward: Parts
    input: Parts
    weight: Parts
    gather: float
    gather_again: float
    reduce: float
    replicate: float

    def passes(self, kind: str) -> Parts:
        """The parts of a kind of pass of `glmforge.plan.time.schedules`."""
        if kind != "backward":
            found: Parts = getattr(self, kind)
            return found
        return dict(Counter(self.input) + Counter(self.weight))


def piece_time(piece: Piece, situation: Situation) -> PieceTime:
    """Of a micro-batch on a rank that has the piece."""
    passes = _passes(piece, situation)
    return PieceTime(passes["forward"], passes["input"], passes["weight"], *_weights(piece, situation))


def pass_seconds(piece: Piece, situation: Situation) -> dict[str, float]:
    """Of "forward", "input" and "weight", without FSDP's traffic."""
    return {name: sum(parts.values()) for name, parts in _passes(piece, situation).items()}


def _passes(piece: Piece, situation: Situation) -> dict[str, Parts]:
    compute = _compute(_ComputeKey.of(piece, situation))
    passes = {name: dict(compute[name]) for name in ("forward", "input", "weight")}
    for direction, axis, seconds in _communication(piece, situation):
        passes[direction][axis] = passes[direction].get(axis, 0.0) + seconds
    if situation.config.parallel.activation_offload and piece.is_layer:
        copy = _saved_bytes(piece, situation) / situation.machine.host_link
        for direction, parts in (("forward", passes["forward"]), ("input", passes["input"] | passes["weight"])):
            passes[direction]["offload"] = max(0.0, copy - sum(parts.values()))
    return passes


def parameters_of(piece: Piece, role: Role, situation: Situation) -> tuple[Parameter, ...]:
    """The rows of a role's table that the piece has, trained or frozen."""
    return _parameters(_ParametersKey(situation.config, situation.model, role, piece, situation.with_mtp))


@dataclass(frozen=True)
class _ComputeKey:
    config: RunConfig = field(compare=False)
    model: str
    piece: Piece
    share: Share
    with_mtp: bool
    recompute: str
    accelerator: Accelerator
    kernels: Kernels
    imbalance: float
    stage: TrainingStage
    rules: tuple[ParameterRule, ...]
    halves: int

    @classmethod
    def of(cls, piece: Piece, situation: Situation) -> "_ComputeKey":
        config, machine, share = situation.config, situation.machine, situation.share
        # `parallel.ep_overlap`: layers take the halves of a micro-batch in turn.
        halves = 2 if config.parallel.ep_overlap and piece.is_layer else 1
        share = replace(share, tokens=share.tokens // halves, attended=share.attended // halves)
        return cls(
            config,
            situation.model,
            piece,
            share,
            situation.with_mtp,
            config.parallel.recompute,
            machine.accelerator,
            situation.kernels,
            situation.imbalance if situation.share.ep > 1 else 1.0,
            situation.stage,
            tuple(config.optim.rules),
            halves,
        )


@lru_cache(maxsize=1 << 14)
def _compute(key: _ComputeKey) -> dict[str, Parts]:
    found: dict[str, Parts] = {"forward": defaultdict(float), "input": defaultdict(float), "weight": defaultdict(float)}
    for operation in stage_operations(key.config, key.share, content_of(key.piece, key.config), key.stage):
        for direction, part, seconds in _operation_seconds(operation, key):
            found[direction][part] += key.halves * seconds
            if operation.name.startswith("experts:"):
                found[direction]["imbalance"] += key.halves * (key.imbalance - 1) * seconds
    return {name: {part: seconds for part, seconds in parts.items() if seconds} for name, parts in found.items()}


def _operation_seconds(operation: Operation, key: _ComputeKey) -> list[tuple[str, str, float]]:
    """(pass, part, seconds); a backward pass is parted into gradients of activations and of weights."""
    times, kernels = float(operation.times), key.kernels

    def seconds(direction: Literal["forward", "backward"]) -> float:
        work = operation.forward if direction == "forward" else operation.backward
        return times * expected_seconds(
            operation,
            work,
            direction,
            key.accelerator,
            kernels.implementation,
            attention=kernels.attention,
            fp8_maps=kernels.fp8_maps,
            fp8_weight_gradients=kernels.fp8_weight_gradients,
            overheads=kernels.overheads,
        )

    forward, backward = seconds("forward"), seconds("backward")
    flops = operation.backward.flops
    of_weights = sum(matmul.flops for matmul in operation.backward.matmuls if matmul.contracts_rows)
    weight = backward * of_weights / flops if flops else 0.0
    found = [("forward", "compute", forward), ("input", "compute", backward - weight), ("weight", "compute", weight)]
    return found + [("input", "recompute", forward)] * operation.again


class _Slots(NamedTuple):
    """Seconds of a pass in which a MoE layer computes what can hide an exchange of tokens between experts."""

    before: float = 0.0
    experts: float = 0.0
    shared: float = 0.0

    def visible(self, exchanges: float, *, in_halves: bool) -> float:
        """Of so many seconds of exchanges, one to the experts and one back, what makes the pass longer.

        The shared experts compute while tokens are on their way to the others. In halves (`parallel.ep_overlap`) the
        way of the first goes beside the second's attention, its way back and the second's way there beside experts, and
        the second's way back beside the shared experts.
        """
        pairs = [(exchanges / 2, self.shared)]
        if in_halves:
            beside = (self.before / 2, self.experts / 2, self.experts / 2, self.shared)
            pairs = [(exchanges / 4, slot) for slot in beside]
        return exchanges - BESIDE_COMMUNICATION.forward * sum(min(pair) for pair in pairs)


@lru_cache(maxsize=1 << 14)
def _slots(key: _ComputeKey) -> dict[str, _Slots]:
    """By pass, forward or backward."""
    found = {"forward": _Slots(), "input": _Slots()}
    for operation in stage_operations(key.config, key.share, content_of(key.piece, key.config), key.stage):
        if operation.name.startswith(_BESIDE_THE_LAYERS):
            continue
        slot = next((slot for begin, slot in _SLOT_OF.items() if operation.name.startswith(begin)), "before")
        for direction, _, seconds in _operation_seconds(operation, key):
            passed = "input" if direction == "weight" else direction
            sum_ = getattr(found[passed], slot) + key.halves * seconds
            found[passed] = found[passed]._replace(**{slot: sum_})
    return found


_SLOT_OF = {"experts:": "experts", "shared expert": "shared"}
_BESIDE_THE_LAYERS = ("embedding", "final norm", "head", "cross-entropy", "MTP:")
"""Operations of a stage's ends, which hide nothing."""


def _communication(piece: Piece, situation: Situation) -> list[tuple[str, str, float]]:
    """(pass, axis, seconds) of what a layer waits for."""
    config, layout = situation.config, situation.layout
    sizes: Counter[str] = Counter()
    for role in situation.stage.roles:
        for axis, size in activation_bytes(config, layout, situation.share, content_of(piece, config), role):
            if axis != "pp" and layout.size(axis) > 1:
                sizes[axis] += size
    ulysses = config.parallel.context_method == "ulysses"
    forwards = sum(role.is_trained + role.forwards for role in situation.stage.roles)
    trained = sum(role.is_trained for role in situation.stage.roles)
    again = 2 if config.parallel.recompute == "full" else 1
    found = []
    for axis, size in sizes.items():
        # Keys and values are gathered again for the backward pass and their gradients scattered.
        backwards = trained * (again if axis != "cp" else 1 if ulysses else 2)
        forward = forwards / (forwards + backwards)
        of_axis: CollectiveKind = "all_to_all" if axis == "ep" or (axis == "cp" and ulysses) else "all_gather"
        visible = ASYNC_TP_EXPOSED if axis == "tp" and config.parallel.async_tp else 1.0
        if axis == "ep":
            visible *= situation.imbalance * _sent_share(situation)
        for direction, share, number in (("forward", forward, forwards), ("input", 1 - forward, backwards)):
            calls = _CALLS[axis] * number
            message = size * share / max(1, calls)
            seconds = visible * calls * collective_seconds(of_axis, message, situation.group(axis), situation.machine)
            if axis == "ep":
                slots = _slots(_ComputeKey.of(piece, situation))[direction]
                seconds = slots.visible(seconds, in_halves=config.parallel.ep_overlap)
            found.append((direction, axis, seconds))
    return found


def _saved_bytes(piece: Piece, situation: Situation) -> int:
    """What a layer saves for its backward pass, about: the inputs of its products, and what attention reads and writes;
    with everything computed again, its own input alone."""
    config, share = situation.config, situation.share
    if config.parallel.recompute == "full":
        return BF16 * share.normed * config.model.hidden_size
    found = 0
    for operation in stage_operations(config, share, content_of(piece, config), situation.stage):
        matmuls = operation.forward.matmuls
        found += operation.forward.bytes if operation.kind == "attention" else 0
        found += matmuls[0].itemsize * matmuls[0].m * matmuls[0].k if matmuls else 0
    return found


def _sent_share(situation: Situation) -> float:
    """Of the rows that `all_to_all` sends, one for each expert of a token: DeepEP sends a token once into each node, or
    inside a node to each rank, that has experts of it."""
    group, choices = situation.group("ep"), situation.config.model.num_experts_per_tok
    if situation.config.parallel.ep_dispatch != "deepep":
        return 1.0
    places = group.num_nodes if group.num_nodes > 1 else group.num_ranks
    return places * (1 - (1 - 1 / places) ** choices) / choices


def _weights(piece: Piece, situation: Situation) -> tuple[float, float, float, float]:
    """Seconds of gathering a piece's weights for a forward and for a backward pass, and of reducing gradients once,
    within a copy of the model and between copies."""
    config, layout, machine = situation.config, situation.layout, situation.machine
    forward, backward, reduced = Counter[str](), Counter[str](), Counter[str]()
    for role in situation.stage.roles:
        rows = parameters_of(piece, role, situation)
        forwards = role.forwards + role.is_trained
        again = int(role.is_trained and config.parallel.reshards_after_forward)
        for in_layer in (True, False):
            some = [row for row in rows if (row.layer is not None) == in_layer]
            for axis, size in gathered_bytes(config, layout, some, role):
                once = size // (forwards + again * in_layer)
                forward[axis] += once * forwards
                backward[axis] += once * again * in_layer
        for axis, size in reduced_bytes(config, layout, rows, 1, role):
            reduced[axis] += size

    def seconds(sizes: Counter[str], kind: CollectiveKind) -> float:
        return sum(collective_seconds(kind, size, situation.group(axis), machine) for axis, size in sizes.items())

    between = Counter({"dp_replicate": reduced.pop("dp_replicate", 0)})
    found = (
        seconds(forward, "all_gather"),
        seconds(backward, "all_gather"),
        seconds(reduced, "reduce_scatter"),
        seconds(between, "all_reduce"),
    )
    if not config.parallel.cpu_offload:
        return found
    # A shard comes from the host before it is gathered, and its gradient goes there, both in fp32.
    shards = sum(
        shard_elements(row, layout) for role in situation.stage.roles for row in parameters_of(piece, role, situation)
    )
    copy = float(FP32 * shards) / machine.host_link
    gathered_again = config.parallel.reshards_after_forward and piece.is_layer
    return found[0] + copy, found[1] + copy * gathered_again, found[2] + copy, found[3]


@dataclass(frozen=True)
class _ParametersKey:
    config: RunConfig = field(compare=False)
    model: str
    role: Role
    piece: Piece
    with_mtp: bool


@lru_cache(maxsize=256)
def _parameters(key: _ParametersKey) -> tuple[Parameter, ...]:
    return tuple(held_parameters(key.config, content_of(key.piece, key.config), key.role))
