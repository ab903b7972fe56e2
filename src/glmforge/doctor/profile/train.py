"""A few real steps of a run's own trainer, and where their time goes.

The stage's recipe, the backend, the source of batches and the trainer are the run's; hooks, checkpoints and its
directory are not touched, and the weights are a new run's. First come steps to warm up, then steps without a profiler,
then as many with it: the two times beside each other say what profiling costs.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.doctor.profile.account import StepParts, account
from glmforge.doctor.profile.ranges import DATA, STEP, marked, phase
from glmforge.doctor.profile.roofline import PhaseWork, Roofline, measure_roofline, planned_work
from glmforge.errors import ConfigError
from glmforge.files import read_json, shown
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.observe.run import write_text
from glmforge.parallel.communication import CollectiveObserver, GroupAxes, trace_events
from glmforge.parallel.world import World, default_device, join_world
from glmforge.plan.fit import Capacity, fits
from glmforge.plan.stages.stage import stage_of
from glmforge.plan.work.traffic import step_traffic
from glmforge.recipes.fit import capacity_at_hand, layout_at_hand
from glmforge.recipes.train import open_recipe, with_kernels
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.training.step import StepResult
from glmforge.training.trainer import Trainer

T = TypeVar("T")

_WARM_UP = 2
RECOMPUTE_MODES = ("none", "selective", "full")
"""From the least to the most; "budget" is of compiled code."""


@dataclass(frozen=True)
class RankProfile:
    """One rank's part. `profiled_s`: a profiled step by the clock, beside which `parts.total` is the trace's."""

    profiled_s: float
    parts: StepParts


@dataclass(frozen=True)
class TrainProfile:
    """What `profile train` found.

    Attributes:
        step_s: median of the steps without the profiler; `profiled_s` of those with it.
        ranks: in their order.
        work, traffic: what the planner counts for the rank of the first pipeline stage, by phase and by axis.
        expert_load: rows of the busiest ep rank over the mean, mean of the layers.
        settings: those that advice is about.
        lighter_recompute: the least that `parallel.recompute` could be set to by the plan of memory, if it is less.
    """

    device: str
    stage: str
    steps: int
    tokens_per_step: int
    step_s: float
    profiled_s: float
    ranks: list[RankProfile]
    peaks: Roofline
    work: dict[str, PhaseWork]
    traffic: dict[str, float]
    expert_load: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    lighter_recompute: str | None = None

    @property
    def accounted(self) -> float:
        """The parts of a step over its time by the clock, of the rank that is farthest from 1."""
        return max((r.parts.total / r.profiled_s for r in self.ranks), key=lambda share: abs(share - 1))

    def mean(self, seconds: Callable[[StepParts], float]) -> float:
        """Of something of all ranks."""
        return statistics.mean(seconds(rank.parts) for rank in self.ranks)

    def as_json(self) -> dict[str, Any]:
        """Everything, the share of its limit that each phase reaches, and a step without its wait for data."""
        more = {
            "accounted": self.accounted,
            "reached": {name: self.reached(name) for name in self.work},
            "without_data_s": self.step_s * (1 - self.mean(lambda parts: parts.of(DATA) / parts.total)),
        }
        return {"profile": "train", **asdict(self), **more}

    def reached(self, name: str) -> float | None:
        """The least time of a phase at the measured peaks over its time; None if it takes none."""
        seconds = self.mean(lambda parts: parts.of(name))
        return self.work[name].limit / seconds if name in self.work and seconds > 0 else None


def step_seconds_of(path: Path) -> float:
    """What a training step takes without its wait for data, from a file that `profile train` wrote.

    Raises `ConfigError` for any other.
    """
    content = read_json(path, dict, error=ConfigError)
    seconds = content.get("without_data_s")
    if content.get("profile") != "train" or not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigError(f"{shown(path)}: was not written by 'glmforge profile train --output'; pass such a file")
    return float(seconds)


def profile_training(
    config: RunConfig, num_steps: int, trace: Path | None = None, say: Callable[[str], object] = lambda words: None
) -> TrainProfile:
    """Of steps of the first phase. All ranks call this together; each writes its trace into the folder `trace`.

    Raises `GlmforgeError` as training does for what the user can fix.
    """
    if config.parallel.compile:
        raise ConfigError(
            "parallel.compile: the phases of compiled code cannot be told apart; profile with parallel.compile=false"
        )
    keep_large_blocks()
    launch, device = LaunchEnvironment.read(), default_device()
    layout = layout_at_hand(config, launch, device)
    with join_world(layout, config.parallel.process_group_timeout_s) as world, tempfile.TemporaryDirectory() as folder:
        config = _short(config, _WARM_UP + 2 * num_steps, Path(folder))
        say("measuring the machine's peaks")
        peaks = measure_roofline(world, config.precision.compute)
        recipe = open_recipe(config, world)
        settled = with_kernels(recipe.config, world)
        backend = recipe.backend(settled, world)
        source, extra = recipe.source(settled, backend), recipe.extra_models(settled, world)
        trainer = Trainer(settled, backend, source, extra_models=extra)
        say(f"{_WARM_UP} steps to warm up, {num_steps} as they are, {num_steps} with the profiler")
        with trainer.running():
            _run(trainer, _WARM_UP)
            plain, _ = _run(trainer, num_steps)
            profiled, results, parts = _profiled(trainer, num_steps, trace)
        mine = RankProfile(statistics.mean(profiled), parts)
        ranks = gathered(mine, world)
        return TrainProfile(
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            stage=config.stage,
            steps=num_steps,
            tokens_per_step=results[-1].tokens,
            step_s=statistics.median(plain),
            profiled_s=statistics.median(profiled),
            ranks=ranks,
            peaks=peaks,
            work=planned_work(settled, layout, world.axis_rank("pp") if world.size > 1 else 0, peaks),
            traffic={each.axis: float(each.bytes) for each in step_traffic(settled, layout, 0, stage_of(settled))},
            expert_load=_expert_load(results[-1].counts_LE, layout.ep),
            settings=_settings(settled, layout),
            lighter_recompute=_lighter_recompute(settled, layout, capacity_at_hand(launch, device)),
        )


def _short(config: RunConfig, num_steps: int, folder: Path) -> RunConfig:
    """As many steps of the first phase, that writes what it has to write elsewhere."""
    length = {"steps": num_steps, "tokens": None, "epochs": None, "batch_ramp": None}
    short = config.phases[0].model_copy(update=length)
    optim = config.optim.model_copy(update={"warmup_steps": None, "warmup_tokens": None})
    return config.model_copy(update={"phases": [short], "optim": optim, "output_dir": folder})


def _run(trainer: Trainer, num_steps: int) -> tuple[list[float], list[StepResult]]:
    """Seconds and results of the next steps."""
    seconds, results = [], []
    for _ in range(num_steps):
        started = time.perf_counter()
        with record_function(STEP):
            with phase(DATA):
                given = trainer.source.next()
            if given is None:
                raise ConfigError("phases.0: ends before enough steps have been profiled; pass fewer --steps")
            results.append(trainer.step(given, data_seconds=time.perf_counter() - started))
            if trainer.world.device.type == "cuda":
                torch.cuda.synchronize(trainer.world.device)
        seconds.append(time.perf_counter() - started)
    return seconds, results


def _profiled(trainer: Trainer, num_steps: int, folder: Path | None) -> tuple[list[float], list[StepResult], StepParts]:
    world = trainer.world
    axes = GroupAxes.of(world)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if world.device.type == "cuda" else [])]
    observer = CollectiveObserver(axes, lambda call: None, mark=True) if world.size > 1 else nullcontext()
    with profile(activities=activities) as trace, marked(), observer:
        seconds, results = _run(trainer, num_steps)
    events = trace_events(trace)
    if folder is not None:
        write_text(folder / f"rank-{world.rank:05d}.trace.json", json.dumps({"traceEvents": events}))
    return seconds, results, account(events, axes)


def gathered(mine: T, world: World) -> list[T]:
    """What each rank has, in their order. All ranks call this together."""
    if world.size == 1:
        return [mine]
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, mine)
    return found


def _expert_load(counts_LE: Tensor, ep: int) -> float:
    if ep == 1 or not counts_LE.numel():
        return 1.0
    rows_LR = counts_LE.double().unflatten(1, (ep, -1)).sum(-1)
    return float((rows_LR.max(1).values / rows_LR.mean(1).clamp(min=1)).mean())


def _lighter_recompute(config: RunConfig, layout: Layout, capacity: Capacity) -> str | None:
    for mode in RECOMPUTE_MODES[: RECOMPUTE_MODES.index(config.parallel.recompute)]:
        parallel = config.parallel.model_copy(update={"recompute": mode})
        if fits(config.model_copy(update={"parallel": parallel}), layout, capacity).missing is None:
            return mode
    return None


def _settings(config: RunConfig, layout: Layout) -> dict[str, Any]:
    first, parallel = config.phases[0], config.parallel
    rows = layout.rank_batch_size(first) // layout.num_micro_batches(first)
    return {
        "data.num_workers": config.data.num_workers,
        "data.prefetch": config.data.prefetch,
        "parallel.micro_batch_size": rows,
        "micro_batches": layout.num_micro_batches(first),
        "seq_len": first.seq_len,
        "parallel.recompute": parallel.recompute,
        "parallel.ep": layout.ep,
        "parallel.ep_overlap": parallel.ep_overlap,
        "parallel.reduce_gradients": parallel.reduce_gradients,
        "capacity_factor": first.capacity_factor,
    }
