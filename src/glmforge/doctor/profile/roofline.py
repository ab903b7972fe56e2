"""What this machine can do, measured in a few seconds, and what the phases of a step ask of it by the planner's counts.

The peaks are those of plain torch here and now: a square product in the compute type, a copy larger than any cache, a
collective on each axis, while all ranks do the same. The work is that of `glmforge.plan.work` with a balanced router
and rows of one document each; in fp32 its bytes count twice. A phase's limit is the time at these peaks; what its
measured time is longer by, a better kernel, a larger batch or less overhead could win.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.doctor.profile.ranges import ATTENTION, DISPATCH, EXPERTS, HEAD, OPTIMIZER, OTHER, RECOMPUTE
from glmforge.parallel.build import DTYPES
from glmforge.parallel.collectives import all_gather, all_reduce, exchange
from glmforge.parallel.world import World
from glmforge.plan.stages.stage import stage_of
from glmforge.plan.work.operations import Operation, Work
from glmforge.plan.work.step import step_operations

_WIDTH = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 1 << 27, "cuda": 1 << 30}
_SENT = {"cpu": 1 << 22, "cuda": 1 << 27}
_SECONDS = 0.3
"""For which each of them is repeated, in one process; the best counts."""
_SENDS = 5
_AXES = ("dp_replicate", "fsdp", "efsdp", "ep", "cp", "tp")
_PHASES = {
    ATTENTION: ("q, k, v projections", "q/k norm and RoPE", "RoPE", "attention", "output projection"),
    EXPERTS: ("experts: gate and up", "experts: SwiGLU", "experts: down"),
    DISPATCH: ("router", "sort and permute", "combine"),
    HEAD: ("head", "cross-entropy"),
}


@dataclass(frozen=True)
class Roofline:
    """FLOP/s in the compute type, bytes per second read and written, and by axis bytes per second of a collective (of
    the larger of its input and output)."""

    flops: float
    memory: float
    links: dict[str, float] = field(default_factory=dict)


@dataclass
class PhaseWork:
    """What a phase of one step computes on a rank: FLOPs, least bytes, and seconds at the peaks."""

    flops: float = 0.0
    bytes: float = 0.0
    limit: float = 0.0


def measure_roofline(world: World, compute: str) -> Roofline:
    """All ranks call this together."""
    device, kind = world.device, world.device.type
    a, b = (torch.randn(_WIDTH[kind], _WIDTH[kind], device=device, dtype=DTYPES[compute]) for _ in range(2))
    source = torch.ones(_COPIED[kind] // 4, device=device)
    target = torch.empty_like(source)
    flops = 2 * _WIDTH[kind] ** 3 / _best(lambda: torch.mm(a, b), device)
    memory = 2 * _COPIED[kind] / _best(lambda: target.copy_(source), device)
    return Roofline(flops, memory, {axis: _link(world, axis) for axis in _AXES if world.group(axis) is not None})


def planned_work(config: RunConfig, layout: Layout, pp_rank: int, peaks: Roofline) -> dict[str, PhaseWork]:
    """By phase, forward and backward together, of a step of the first phase."""
    wide = 2 if config.precision.compute == "fp32" else 1
    counted = config.model_copy(update={"precision": config.precision.model_copy(update={"compute": "bf16"})})
    found: dict[str, PhaseWork] = {}
    for operation in step_operations(counted, layout, pp_rank, stage=stage_of(config)):
        for index, (_, work) in enumerate(operation.passes):
            phase = RECOMPUTE if index == 2 else phase_of(operation)
            _add(found.setdefault(phase, PhaseWork()), work, float(operation.times), peaks, wide)
    return found


def phase_of(operation: Operation) -> str:
    """Where the time of one of the planner's operations is measured."""
    if operation.is_update or operation.name == "gradient accumulation":
        return OPTIMIZER
    return next((phase for phase, names in _PHASES.items() if operation.name in names), OTHER)


def _add(found: PhaseWork, work: Work, times: float, peaks: Roofline, wide: int) -> None:
    found.flops += times * work.flops
    found.bytes += times * work.bytes * wide
    found.limit += times * max(work.flops / peaks.flops, work.bytes * wide / peaks.memory)


def _best(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several runs, at least two of them."""
    best, stop = float("inf"), time.perf_counter() + _SECONDS
    run()
    while best == float("inf") or time.perf_counter() < stop:
        best = min(best, _timed(run, device))
    return best


def _timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _link(world: World, axis: str) -> float:
    group = world.group(axis)
    assert group is not None
    ranks = group.size()
    rows = _SENT[world.device.type] // 4 // ranks
    whole, part = torch.zeros(rows * ranks, device=world.device), torch.zeros(rows, device=world.device)

    def send() -> None:
        if axis == "ep":
            exchange(whole, group, [rows] * ranks, [rows] * ranks)
        elif axis == "dp_replicate":
            all_reduce(whole, group)
        else:
            all_gather(part, group)

    # As often on every rank.
    return 4 * rows * ranks / min(_timed(send, world.device) for _ in range(_SENDS))
