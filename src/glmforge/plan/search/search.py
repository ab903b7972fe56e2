"""The search for a layout, in three steps that each leave fewer.

1. Of every combination of sizes, under the usual schedule, the least recomputation with which it fits the memory.
2. Of these the predicted time, those of the smallest lower bound first, until no other layout can be faster than the
best. 3. The best of them under every schedule, ranked by time; equal times by the simpler layout.

`glmforge.dryrun.search` then dry-runs the first ones.

Nothing is random, and ties are broken by the sizes themselves: the same question has the same answer.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from glmforge.config.layout import Layout
from glmforge.config.parallel import ParallelConfig
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.machine import Machine
from glmforge.plan.memory.estimate import MemoryEstimate, MemoryModel
from glmforge.plan.search.space import RECOMPUTATIONS, Axes, Space
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage
from glmforge.plan.time.step_time import StepTime, least_seconds, predict_step

USABLE = 0.9
"""Of a device's memory: the rest is for the allocator's fragments, NCCL, kernels' workspaces and the CUDA context."""

_TIMED = 150
"""Layouts that are timed at least, for there to be a choice."""
_REFINED = 30
"""Combinations of sizes of which every schedule is looked at."""

OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Fit:
    """A layout that the rules allow, with what it needs; `config` has one phase."""

    config: RunConfig
    layout: Layout
    memory: MemoryEstimate


@dataclass(frozen=True)
class Candidate(Fit):
    """A layout that fits, and how long its step takes."""

    time: StepTime

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts by time, and equal times by simplicity."""
        layout, parallel = self.layout, self.config.parallel
        sizes = (layout.pp, layout.tp, layout.cp, layout.ep, layout.dp_replicate, -(layout.micro_batch_size or 0))
        again = RECOMPUTATIONS.index(parallel.recompute)
        return round(self.time.seconds, 9), sizes, again, parallel.pipeline_schedule


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        ranked: the layouts that fit, the fastest first.
        num_layouts: how many the rules allow, of those that were looked at.
        num_fitting: how many of them fit the memory.
        memory_limit: bytes of a device that a layout may need.
    """

    machine: Machine
    world_size: int
    stage: TrainingStage
    memory_limit: int
    ranked: tuple[Candidate, ...]
    num_layouts: int
    num_fitting: int

    @property
    def fits_devices(self) -> bool:
        """Whether something fits without moving what it needs to host memory."""
        return any(not _offloads(candidate.config.parallel) for candidate in self.ranked)

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """Those that no other layout beats in both time and memory, the fastest first."""
        best: list[Candidate] = []
        for candidate in self.ranked:
            if not best or candidate.memory.peak < best[-1].memory.peak:
                best.append(candidate)
        return tuple(best)


def search_layouts(
    config: RunConfig,
    world_size: int,
    machine: Machine,
    *,
    phase: str | None = None,
    stage: TrainingStage = PRETRAINING,
    progress: OnProgress = lambda line: None,
) -> SearchResult:
    """The layouts of `config` on `world_size` devices of `machine` that fit, ranked by the time of a step.

    Time and memory are those of the phase (the first if None is given), which alone has to work if it is named; else
    the layout's rules have to hold for all phases. `ranked` is empty where nothing fits.
    """
    space = Space(select_phase(config, phase) if phase else config, world_size, machine.ranks_per_node)
    search = LayoutSearch(space, machine, stage)
    fitting = list(search.fitting())
    progress(f"{len(fitting):,} of {search.num_layouts:,} layouts fit {search.limit / 1e9:.0f} GB")
    coarse = sorted(search.fastest(fitting), key=lambda candidate: candidate.order)
    progress(f"{len(coarse):,} of them timed; no other layout can be faster")
    refined = search.refined(coarse[:_REFINED])
    ranked = sorted(_distinct([*coarse, *refined]), key=lambda candidate: candidate.order)
    return SearchResult(machine, world_size, stage, search.limit, tuple(ranked), search.num_layouts, len(fitting))


def _offloads(parallel: ParallelConfig) -> bool:
    return parallel.activation_offload or parallel.cpu_offload


class LayoutSearch:
    """The steps of one search; `num_layouts` counts what the rules allowed."""

    def __init__(self, space: Space, machine: Machine, stage: TrainingStage = PRETRAINING) -> None:
        self.space, self.machine, self.stage = space, machine, stage
        self.limit = int(USABLE * machine.accelerator.memory_bytes)
        self.memory = MemoryModel(select_phase(space.config, None), stage)
        self.num_layouts = 0

    def fitting(self) -> Iterator[Fit]:
        """For each combination of sizes that fits at all, the least recomputation with which it does."""
        found = [one for axes in self.space.axes() if (one := self._fitting(axes))]
        for offload in () if found else self._offloads():
            found += [one for axes in self.space.axes() if (one := self._fitting(axes, **offload))]
        yield from found

    def _offloads(self) -> list[dict[str, bool]]:
        """What is tried where nothing fits: each costs transfers that other layouts do without."""
        activations = [] if self.space.config.parallel.compile else [{"activation_offload": True}]
        masters = [{"cpu_offload": True}] if self.space.world_size > 1 else []
        return activations + masters

    def _fitting(self, axes: Axes, **more: Any) -> Fit | None:
        """Under the usual schedule, or the next one where it asks for more micro-batches than there are."""
        for schedule in self.space.schedules(axes.pp)[:2]:
            resolved = self.space.resolve(axes, schedule, RECOMPUTATIONS[-1], **more)
            if resolved is not None:
                self.num_layouts += 1
                return self.least_recomputed(*resolved)
        return None

    def least_recomputed(self, config: RunConfig, layout: Layout) -> Fit | None:
        """What fits with the least recomputation; `config` has the most."""
        config = select_phase(config, None)
        fitting = self._if_fitting(config, layout)
        if fitting is None:
            return None
        for recompute in RECOMPUTATIONS[:-1]:
            parallel = config.parallel.model_copy(update={"recompute": recompute})
            found = self._if_fitting(config.model_copy(update={"parallel": parallel}), layout)
            if found is not None:
                return found
        return fitting

    def _if_fitting(self, config: RunConfig, layout: Layout) -> Fit | None:
        memory = self.memory.estimate(config, layout)
        return Fit(config, layout, memory) if memory.peak <= self.limit else None

    def smallest(self) -> Iterator[Fit]:
        """What fits with everything computed again."""
        for axes in self.space.axes():
            for schedule in self.space.schedules(axes.pp)[:2]:
                resolved = self.space.resolve(axes, schedule, RECOMPUTATIONS[-1])
                found = self._if_fitting(select_phase(resolved[0], None), resolved[1]) if resolved else None
                if found is not None:
                    yield found

    def fastest(self, fits: Iterable[Fit]) -> list[Candidate]:
        """Timed, the fastest among them and no fewer than `_TIMED`; the others cannot be faster than all of these."""
        bounds = [
            (least_seconds(fit.config, fit.layout, self.machine, self.stage), axes_of(fit.layout), fit) for fit in fits
        ]
        timed: list[Candidate] = []
        best = math.inf
        for bound, _, fit in sorted(bounds, key=lambda bounded: bounded[:2]):
            if len(timed) >= _TIMED and bound >= best:
                break
            timed.append(self.timed(fit))
            best = min(best, timed[-1].time.seconds)
        return timed

    def timed(self, fit: Fit) -> Candidate:
        """`fit` with its predicted step."""
        time = predict_step(fit.config, fit.layout, self.machine, stage=self.stage)
        return Candidate(fit.config, fit.layout, fit.memory, time)

    def refined(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """The same sizes under every schedule."""
        for candidate in candidates:
            axes = axes_of(candidate.layout)
            parallel = candidate.config.parallel
            offloads = {"activation_offload": parallel.activation_offload, "cpu_offload": parallel.cpu_offload}
            for schedule in self.space.schedules(axes.pp):
                if schedule == parallel.pipeline_schedule:
                    continue
                resolved = self.space.resolve(axes, schedule, RECOMPUTATIONS[-1], **offloads)
                found = self.least_recomputed(*resolved) if resolved else None
                if found is not None:
                    yield self.timed(found)


def axes_of(layout: Layout) -> Axes:
    """The sizes of a layout whose micro-batches have one."""
    assert layout.micro_batch_size is not None, "a search sets the micro-batch size"
    return Axes(
        layout.pp, layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp, layout.ep, layout.micro_batch_size
    )


def _distinct(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    seen: set[tuple[Any, ...]] = set()
    for candidate in candidates:
        if candidate.order not in seen:
            seen.add(candidate.order)
            yield candidate
