"""What a dry run found as rows for tables and as JSON, and what its figures do not hold."""

from collections import Counter

from glmforge.dryrun.run import DryRun, RankClass
from glmforge.plan.memory.estimate import ROLLOUT, MemoryEstimate, PlaceMemory, estimate_memory
from glmforge.plan.memory.purposes import Purpose, purposes_in
from glmforge.plan.report import PlannedMemory
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage

_HELD = (Purpose.WEIGHTS, Purpose.GRADIENTS, Purpose.OPTIMIZER)
_AT_PEAK = purposes_in(())
_AXES = ("pp", "dp_replicate", "fsdp", "efsdp", "ep", "cp", "tp", "other")

MEMORY_COLUMNS = ("pp", "holds", "ranks", "params", "weights", "grads", "optim", "peak", "in")
PEAK_COLUMNS = ("pp", "weights", "grads", "optim", "gathered", "unreduced", "activ.", "buffers", "working", "peak")
"""In the order of `_AT_PEAK`."""


def memory_rows(found: DryRun) -> list[tuple[int, str, int, int, list[int], str]]:
    """Per class: pp rank, what it holds, ranks, parameters per rank, bytes of weights, gradients, optimizer and peak,
    moment of the peak."""
    return [
        (
            kind.pp_rank,
            "; ".join(stage.words for stage in kind.stages),
            kind.num_ranks,
            kind.findings.shard_classes[0].parameters,
            [*(kind.findings.held[purpose] for purpose in _HELD), kind.step.peak],
            kind.step.moment,
        )
        for kind in found.classes
    ]


def peak_rows(found: DryRun) -> list[tuple[int, list[int]]]:
    """Per class: what the peak consists of, in that order, and its sum."""
    return [
        (kind.pp_rank, [*(kind.step.at_peak[purpose] for purpose in _AT_PEAK), kind.step.peak])
        for kind in found.classes
    ]


def planned_memory(found: DryRun, stage: TrainingStage = PRETRAINING) -> PlannedMemory:
    """As a plan shows it. No dry run samples: where a rollout needs more than the step, closed forms tell it."""
    places = [PlaceMemory(kind.pp_rank, Counter(kind.step.at_peak), kind.step.moment) for kind in found.classes]
    source = "dry run of the trainer's own step"
    if stage.rollout is not None:
        source += "; rollouts by closed forms"
        estimate = estimate_memory(found.config, found.layout, stage)
        at_place = {place.pp_rank: place for place in estimate.places if place.moment == ROLLOUT}
        places = [max(one, at_place.get(one.pp_rank, one), key=lambda place: place.peak) for one in places]
    return PlannedMemory(MemoryEstimate(tuple(places)), source)


def traffic_axes(found: DryRun) -> list[str]:
    """The axes along which anything is communicated."""
    used = {axis for kind in found.classes for axis, _ in kind.step.traffic}
    return [axis for axis in _AXES if axis in used]


def traffic_rows(found: DryRun) -> list[tuple[int, list[tuple[int, int]]]]:
    """Per class: calls and bytes per step on each of `traffic_axes`."""
    axes = traffic_axes(found)
    return [
        (kind.pp_rank, [(kind.step.traffic[axis, "calls"], kind.step.traffic[axis, "bytes"]) for axis in axes])
        for kind in found.classes
    ]


def notes(found: DryRun) -> list[str]:
    """What was measured how, and what is not in the figures."""
    parallel, precision = found.config.parallel, found.config.precision
    lines = [
        "Measured on tensors without memory: the trainer's own model, schedule and optimizer, one rank per kind. "
        "Weights, gradients and optimizer state are exact; the peak is the sum of all tensors alive at once.",
        "Not included, as no GPU was used: allocator fragmentation and rounding, NCCL buffers, workspaces of cuBLAS "
        "and other kernels, the CUDA context. As a rule of thumb, reserve a tenth of the device for them.",
    ]
    if "other" in traffic_axes(found):
        lines.append("'other': groups of a whole stage, over which Muon exchanges matrices, and groups of all ranks.")
    if precision.compute == "bf16":
        lines.append("Kernels as on a GPU: FlashAttention for packed documents, grouped matmul for experts.")
    else:
        lines.append("fp32: attention as on a CPU, which saves more activations than GPU kernels.")
    if parallel.compile:
        lines.append("parallel.compile is ignored; compiled layers usually save fewer activations.")
    if parallel.recompute == "budget":
        lines.append("parallel.recompute 'budget' is up to the compiler and counted as 'none'.")
    if found.config.stage == "rl":
        lines.append("The policy's step, beside the weights and optimizer states of all models; nothing is sampled.")
    smaller = [kind for kind in found.classes if len(kind.findings.shard_classes) > 1]
    if smaller:
        lines.append("Some dimensions do not divide evenly; the rank with the largest shards of each stage is shown.")
    return lines


def as_json(found: DryRun) -> dict[str, object]:
    """Everything, ready for JSON; bytes and calls are of one rank and one step."""
    return {
        "world_size": found.layout.world_size,
        "seconds": round(found.seconds, 1),
        "peak_bytes": found.peak,
        "notes": notes(found),
        "classes": [_class_as_json(kind) for kind in found.classes],
    }


def _class_as_json(kind: RankClass) -> dict[str, object]:
    return {
        "pp_rank": kind.pp_rank,
        "stages": [stage.words for stage in kind.stages],
        "ranks": kind.num_ranks,
        "shards": [shards._asdict() for shards in kind.findings.shard_classes],
        "held_bytes": {str(purpose): size for purpose, size in kind.findings.held.items()},
        "peak_bytes": kind.step.peak,
        "peak_in": kind.step.moment,
        "at_peak_bytes": {str(purpose): kind.step.at_peak[purpose] for purpose in _AT_PEAK},
        "traffic": {
            axis: {what: kind.step.traffic[axis, what] for what in ("calls", "bytes")}
            for axis in _AXES
            if (axis, "calls") in kind.step.traffic
        },
    }
