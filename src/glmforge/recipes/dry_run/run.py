"""The dry run of a whole job: one rank of each kind, in processes of their own, two at a time.

Ranks are of a kind if they hold the same layers at the same place in the pipeline. Ranks of the same layers do the same
and differ only in how many micro-batches are in flight, so one run per content serves all its places. Within a
stage, shards differ where a dimension does not divide; the rank with most is run, and the sizes of the others' shards
are told beside it.

torch makes a process group of the fake kind once per process; the processes are forked from a server that has imported
torch already.
"""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.pipeline import SINGLE_STAGE_SCHEDULES
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.layout import Stage, stages_of_pp_rank
from glmforge.recipes.dry_run.steps import RankFindings, Step

NUM_PROCESSES = 2

Progress = Callable[[str], None]


@dataclass(frozen=True)
class RankClass:
    """The ranks that hold `stages`, and the step of the one whose shards are largest."""

    pp_rank: int
    stages: list[Stage]
    findings: RankFindings
    step: Step
    num_ranks: int


@dataclass(frozen=True)
class DryRun:
    """What came out: the classes in the order of the pipeline, and the seconds it took."""

    config: RunConfig
    layout: Layout
    classes: list[RankClass]
    seconds: float

    @property
    def peak(self) -> int:
        """Bytes of the rank that needs most."""
        return max(kind.step.peak for kind in self.classes)


def dry_run(
    config: RunConfig,
    world_size: int,
    *,
    rank: int | None = None,
    imbalance: float = 1.0,
    progress: Progress = lambda line: None,
) -> DryRun:
    """Take one step of the first phase on a rank of each kind, or on `rank` alone, without data, GPU or memory.

    Raises `ConfigError` for a layout that does not work, or of which a dry run could not tell the memory.
    """
    started = time.perf_counter()
    layout = resolve_layout(config, world_size)
    _check(config, world_size, rank, imbalance)
    pp_ranks = list(range(layout.pp)) if rank is None else [rank // layout.stage_ranks]
    contents = _by_content(config, layout, pp_ranks)
    jobs = {key: rank if rank is not None else places[0] * layout.stage_ranks for key, places in contents.items()}
    progress(f"dry run of {len(jobs)} rank{'s' if len(jobs) > 1 else ''} of different content")
    findings: dict[object, RankFindings] = {}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["glmforge.recipes.dry_run.rank"])
    with ProcessPoolExecutor(NUM_PROCESSES, mp_context=context, max_tasks_per_child=1) as pool:
        futures: dict[Future[RankFindings], object] = {
            pool.submit(_run_rank, config, world_size, job, imbalance): key for key, job in jobs.items()
        }
        for done in as_completed(futures):
            key = futures[done]
            findings[key] = done.result()
            seconds = time.perf_counter() - started
            progress(f"rank {jobs[key]} done ({len(findings)} of {len(jobs)}), {seconds:.0f} s")
    schedule, phase = config.parallel.pipeline_schedule, config.phases[0]
    classes = [
        RankClass(
            place,
            stages_of_pp_rank(config, layout, place),
            findings[key],
            findings[key].step_at(layout, phase, schedule, place),
            layout.stage_ranks if rank is None else 1,
        )
        for key, places in contents.items()
        for place in places
    ]
    return DryRun(config, layout, sorted(classes, key=lambda kind: kind.pp_rank), time.perf_counter() - started)


def _run_rank(config: RunConfig, world_size: int, rank: int, imbalance: float) -> RankFindings:
    from glmforge.recipes.dry_run.rank import dry_run_rank

    return dry_run_rank(config, world_size, rank, imbalance)


def _by_content(config: RunConfig, layout: Layout, pp_ranks: list[int]) -> dict[object, list[int]]:
    """Places in the pipeline by what lies there; every place by itself where the schedule does more than 1F1B."""
    places: dict[object, list[int]] = {}
    one_stage = config.parallel.pipeline_schedule in SINGLE_STAGE_SCHEDULES
    for pp_rank in pp_ranks:
        content = tuple(stage.content for stage in stages_of_pp_rank(config, layout, pp_rank))
        places.setdefault(content if one_stage else (content, pp_rank), []).append(pp_rank)
    return places


def _check(config: RunConfig, world_size: int, rank: int | None, imbalance: float) -> None:
    parallel = config.parallel
    if rank is not None and not 0 <= rank < world_size:
        raise ConfigError(f"--rank: {rank} is no rank of {world_size}; give one from 0 to {world_size - 1}")
    if imbalance < 1:
        raise ConfigError(f"--imbalance: {imbalance:g} is less than an even share; give 1.0 or more")
    if parallel.cpu_offload:
        raise ConfigError("parallel.cpu_offload: a dry run does not tell host from GPU memory; set it to false")
