"""The peak of a real training step on this device by what it is for, beside the closed form of `glmforge plan`.

The step is the trainer's own, watched storage by storage as a dry run is (`glmforge.dryrun.observe`), but with memory
and numbers: rows of random tokens, one document each, which is what the plan counts, too. What the process holds
beyond these tensors (the allocator, libraries' workspaces, what a kernel takes within one operation) is `other`.
"""

import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.doctor.profile.ranges import HEAD_METHODS, wrapped
from glmforge.doctor.profile.train import gathered
from glmforge.dryrun.observe import Observation, StandIns, observe_step
from glmforge.dryrun.rank import blank_batch
from glmforge.dryrun.timeline import in_order
from glmforge.dryrun.tracker import MemoryTracker
from glmforge.errors import ConfigError
from glmforge.model.head import LMHead
from glmforge.observe.environment import process_rss_bytes
from glmforge.parallel.build import initialize_shards
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World, default_device, join_world
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.stages.stage import stage_of
from glmforge.recipes.fit import layout_at_hand
from glmforge.runtime.launch import LaunchEnvironment

LOGITS = "logits"


@dataclass(frozen=True)
class MemoryProfile:
    """Of the rank with the highest peak.

    Attributes:
        measured, planned: bytes by purpose at the peak; the plan has logits among its working memory.
        moment, planned_moment: when the peak is.
        other: bytes that the process, or the GPU's allocator, took at most beyond these tensors.
    """

    device: str
    rank: int
    measured: dict[str, int]
    planned: dict[str, int]
    moment: str
    planned_moment: str
    other: int

    @property
    def peak(self) -> int:
        return sum(self.measured.values())

    @property
    def planned_peak(self) -> int:
        return sum(self.planned.values())

    def more_than_planned(self, purpose: str) -> int:
        """Bytes; of working memory with logits."""
        logits = self.measured.get(LOGITS, 0) if purpose == Purpose.WORKING else 0
        return self.measured.get(purpose, 0) + logits - self.planned.get(purpose, 0)

    @property
    def difference(self) -> str:
        """Where plan and measurement are farthest apart, in words."""
        purpose = max(Purpose, key=lambda purpose: abs(self.more_than_planned(purpose)))
        more = self.more_than_planned(purpose)
        if not more:
            return "the plan is exact"
        moments = (
            "" if self.moment == self.planned_moment else f" (peak in {self.moment}, by plan {self.planned_moment})"
        )
        words = f"{abs(more):,} B {'more' if more > 0 else 'less'} of {purpose}"
        return f"peak {self.peak / self.planned_peak - 1:+.1%} against the plan{moments}; most of it: {words}"

    def as_json(self) -> dict[str, Any]:
        """Everything."""
        totals = {"peak": self.peak, "planned_peak": self.planned_peak, "difference": self.difference}
        return {"profile": "memory", **asdict(self), **totals}


def profile_memory(config: RunConfig, snapshot: Path | None = None) -> MemoryProfile:
    """Of a step of the first phase. All ranks call this together.

    On CUDA, with `snapshot`, the allocator's history of each rank is written into that folder, for
    pytorch.org/memory_viz. Raises `GlmforgeError` for what the user can fix.
    """
    if snapshot is not None and default_device().type != "cuda":
        raise ConfigError("--snapshot: is of CUDA's allocator, and this machine trains on its CPU; leave it out")
    config = config.model_copy(update={"parallel": config.parallel.model_copy(update={"compile": False})})
    layout = layout_at_hand(config, LaunchEnvironment.read(), default_device())
    with join_world(layout, config.parallel.process_group_timeout_s) as world:
        before = _held(world.device)
        with _history(world, snapshot):
            seen, heads = _observed(config, world, layout)
        in_order(seen)  # names the purpose of every storage
        measured, moment = at_peak(seen, heads)
        other = max(0, _held(world.device, most=True) - before - measured.total())
        place = estimate_memory(config, layout, stage_of(config)).places[world.axis_rank("pp") if world.size > 1 else 0]
        planned = {str(purpose): size for purpose, size in place.at_peak.items() if size}
        name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"
        mine = MemoryProfile(name, world.rank, dict(measured), planned, moment, place.moment, other)
        return max(gathered(mine, world), key=lambda each: each.peak)


def at_peak(seen: Observation, heads: Sequence[tuple[int, int]]) -> tuple[Counter[str], str]:
    """Bytes by category at the highest point of a step whose storages have their purposes, and when it is.

    `heads` are the parts of the log in which the head was at work: what it made and did not keep are logits.
    """
    total = highest = peak = 0
    for position, (_, change) in enumerate(seen.log):
        total += change
        if total > highest:
            highest, peak = total, position
    of_head = {storage for start, stop in heads for storage, _ in seen.log[start:stop]}
    level: Counter[str] = Counter()
    for storage, change in seen.log[: peak + 1]:
        is_logits = storage.purpose is Purpose.WORKING and storage in of_head
        level[LOGITS if is_logits else str(storage.purpose)] += change
    labels = [mark.label for mark in seen.marks if mark.log <= peak]
    return Counter({name: size for name, size in level.items() if size}), labels[-1] if labels else "before"


def _observed(config: RunConfig, world: World, layout: Layout) -> tuple[Observation, list[tuple[int, int]]]:
    num_rows = layout.rank_batch_size(config.phases[0])

    def batch() -> Batch:
        blank = blank_batch(config, num_rows)
        generator = torch.Generator().manual_seed(world.data_rank)
        ids_BS = torch.randint(config.model.vocab_size, blank.ids_BS.shape, generator=generator)
        return replace(blank, ids_BS=ids_BS, labels_BS=ids_BS.clone()).to(world.device)

    def initialize(model: ParallelModel) -> None:
        for part in model.parts:
            initialize_shards(part, model.table, config.seed)

    heads: list[tuple[int, int]] = []
    with ExitStack() as stack:
        for name in HEAD_METHODS:
            stack.enter_context(wrapped(LMHead, name, partial(_noted, heads)))
        seen, _ = observe_step(config, world, batch, StandIns(), initialize)
    return seen, heads


@contextmanager
def _noted(heads: list[tuple[int, int]]) -> Iterator[None]:
    """Note where in the tracker's log the head begins and ends."""
    log = next(mode.log for mode in _get_current_dispatch_mode_stack() if isinstance(mode, MemoryTracker))
    start = len(log)
    yield
    heads.append((start, len(log)))


@contextmanager
def _history(world: World, folder: Path | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    torch.cuda.memory._record_memory_history()
    try:
        yield
        torch.cuda.memory._dump_snapshot(str(folder / f"rank-{world.rank:05d}.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _held(device: torch.device, *, most: bool = False) -> int:
    """Bytes of this process now, or at most until now; of the allocator of a GPU. 0 where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device) if most else torch.cuda.memory_reserved(device))
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if most else process_rss_bytes() or 0
