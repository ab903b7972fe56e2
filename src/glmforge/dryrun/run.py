"""The dry run of a whole job: one rank of each kind, in processes of their own, two at a time.

Ranks are of a kind if they hold the same layers at the same place in the pipeline. Ranks of the same layers do the same
and differ only in how many micro-batches are in flight, so one run per content serves all its places. Within a
stage, shards differ where a dimension does not divide; the rank with most is run, and the sizes of the others' shards
are reported with it. Where attention keeps other results on some ranks along cp than on others, each of them is run,
and the one that needs most is reported.

torch makes a process group of the fake kind once per process; the processes are forked from a server that has imported
torch already.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.pipeline import V_SCHEDULES
from glmforge.config.schema import RunConfig
from glmforge.dryrun.steps import RankFindings, StepResources
from glmforge.errors import ConfigError
from glmforge.plan.layout import StageContent, stages_of_pp_rank
from glmforge.runtime.waiting import take

NUM_PROCESSES = 2

OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class RankClass:
    """The ranks that hold `stages`, and the step of the one that needs most."""

    pp_rank: int
    stages: list[StageContent]
    findings: RankFindings
    step: StepResources
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
    progress: OnProgress = lambda line: None,
) -> DryRun:
    """Take one step of the first phase on a rank of each kind, or on `rank` alone, without data, GPU or memory.

    Raises `ConfigError` for a layout that does not work, or of which a dry run could not tell the memory.
    """
    started = time.perf_counter()
    layout = resolve_layout(config, world_size)
    _check(config, world_size, rank, imbalance)
    pp_ranks = list(range(layout.pp)) if rank is None else [rank // layout.stage_ranks]
    contents = by_content(config, layout, pp_ranks)
    within = ranks_within_stage(config, layout) if rank is None else [rank % layout.stage_ranks]
    num_jobs = len(contents) * len(within)
    progress(f"dry run of {num_jobs} rank{'s' if num_jobs > 1 else ''} that differ")
    found: dict[int, dict[int, RankFindings]] = {one: {} for one in within}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["glmforge.dryrun.rank"])
    with ProcessPoolExecutor(NUM_PROCESSES, mp_context=context, max_tasks_per_child=1) as pool:
        jobs: dict[Future[RankFindings], tuple[int, list[int]]] = {}
        ended: SimpleQueue[Future[RankFindings]] = SimpleQueue()

        def submit(one: int, places: list[int]) -> None:
            job = places[0] * layout.stage_ranks + one
            future = pool.submit(_run_rank, config, world_size, job, imbalance, places)
            jobs[future] = one, places
            future.add_done_callback(ended.put)

        for places in contents:
            for one in within:
                submit(one, places)
        while jobs:
            done = take(ended)
            (one, places), findings = jobs.pop(done), done.result()
            found[one] |= dict.fromkeys(findings.steps, findings)
            if left := [place for place in places if place not in found[one]]:
                submit(one, left)
            num_done = min(map(len, found.values()))
            progress(f"{num_done} of {len(pp_ranks)} places done, {time.perf_counter() - started:.0f} s")
    num_ranks = layout.stage_ranks if rank is None else 1
    classes = []
    for place in pp_ranks:
        findings = max((of_one[place] for of_one in found.values()), key=lambda of_one: of_one.steps[place].peak)
        stages = stages_of_pp_rank(config, layout, place)
        classes.append(RankClass(place, stages, findings, findings.steps[place], num_ranks))
    return DryRun(config, layout, classes, time.perf_counter() - started)


def _run_rank(config: RunConfig, world_size: int, rank: int, imbalance: float, places: list[int]) -> RankFindings:
    from glmforge.dryrun.rank import dry_run_rank

    return dry_run_rank(config, world_size, rank, imbalance, places=places)


def by_content(config: RunConfig, layout: Layout, pp_ranks: Iterable[int]) -> list[list[int]]:
    """Places in the pipeline by what lies there. At the turn of a V a rank hands its own results on, and sends none."""
    places: dict[object, list[int]] = {}
    is_v = config.parallel.pipeline_schedule in V_SCHEDULES
    for pp_rank in pp_ranks:
        content = tuple(stage.content for stage in stages_of_pp_rank(config, layout, pp_rank))
        places.setdefault((content, is_v and pp_rank == layout.pp - 1), []).append(pp_rank)
    return list(places.values())


def ranks_within_stage(config: RunConfig, layout: Layout) -> list[int]:
    """The ranks of a stage, counted from its first, of which one needs most: the first, whose shards are largest.

    Attention that goes document by document, as on a CPU, takes each rank's two chunks of a row with the keys before
    them: how many it copies, and by which kernel, depends on where they lie. Then it is the first of each rank on cp.
    """
    parallel, attention = config.parallel, config.kernels.attention
    by_document = attention == "documents" or (attention == "auto" and config.precision.compute != "bf16")
    if parallel.context_method != "gather" or not by_document:
        return [0]
    return [number * layout.tp for number in range(layout.cp)]


def _check(config: RunConfig, world_size: int, rank: int | None, imbalance: float) -> None:
    parallel = config.parallel
    if rank is not None and not 0 <= rank < world_size:
        raise ConfigError(f"--rank: {rank} is not a rank of {world_size}; give one from 0 to {world_size - 1}")
    if imbalance < 1:
        raise ConfigError(f"--imbalance: {imbalance:g} is less than an even share; give 1.0 or more")
    if parallel.cpu_offload:
        raise ConfigError(
            "parallel.cpu_offload: a dry run cannot distinguish host memory from GPU memory; set it to false"
        )
