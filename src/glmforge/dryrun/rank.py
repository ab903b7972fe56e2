"""The dry run of one rank: what a process of its own does, and what it hands back."""

import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import prod

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.rl import RlConfig
from glmforge.config.schema import RunConfig
from glmforge.data.preferences.stream import MARGIN, PAIR, REFERENCE
from glmforge.data.stream.batch import Batch
from glmforge.dryrun.alone import even_splits, isolate_pipeline, micro_batch_size, world_of_one
from glmforge.dryrun.excerpts import excerpt_of
from glmforge.dryrun.observe import StandIns, observe_step
from glmforge.dryrun.steps import RankFindings, ShardClass
from glmforge.kernels.target import kernels_of
from glmforge.objectives.policy import ADVANTAGE, OLD_LOGPROB, REFERENCE_LOGPROB, ROLLOUT_LOGPROB
from glmforge.optim.sharding import Span, chunk, splits_of
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.pipeline import Pipeline


def dry_run_rank(
    config: RunConfig,
    world_size: int,
    rank: int,
    imbalance: float = 1.0,
    *,
    places: Sequence[int] = (),
    shorten: bool = True,
) -> RankFindings:
    """Run an excerpt of a step of `rank` of `world_size`, on tensors without memory. Once per process.

    `places` are the pipeline ranks whose steps are requested, all with the content of `rank`; its own if not given.
    `shorten=False` runs all micro-batches by the run's own schedule.
    """
    layout = resolve_layout(config, world_size)
    config = _prepared(config)
    phase = config.phases[0]
    kernels = kernels_of("cuda" if config.precision.compute == "bf16" else "cpu")
    with world_of_one(layout, rank) as world, kernels:
        excerpt = excerpt_of(config, world, list(places) or [rank // layout.stage_ranks], shorten=shorten)
        num_rows = micro_batch_size(layout, phase) * excerpt.num_micro_batches

        def adapt(pipeline: Pipeline) -> None:
            isolate_pipeline(pipeline)
            excerpt.adapt(pipeline)

        stand_ins = StandIns(
            splits=even_splits(config, layout, phase, imbalance),
            adapt_pipeline=adapt,
            to_host=lambda numbers: [1.0] + [0.0] * (len(numbers) - 1),
            mode=lambda: FakeTensorMode(allow_non_fake_inputs=True),
        )
        seen, model = observe_step(config, world, lambda: blank_batch(config, num_rows), stand_ins)
        classes = shard_classes(model, layout, rank)
    return RankFindings(seen.held, classes, excerpt.steps(seen))


def shard_classes(model: ParallelModel, layout: Layout, rank: int) -> list[ShardClass]:
    """The ranks of the stage of `rank` by the sizes of their shards, by arithmetic; the largest first."""
    kinds = Counter((tuple(p.shape), splits_of(p)) for p in model.parameters())
    first = rank - rank % layout.stage_ranks
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for member in range(first, first + layout.stage_ranks):
        where = layout.coordinates(member)
        members[tuple(_num_elements(chunk(*kind, where)) for kind in kinds)].append(member)
    classes = (
        ShardClass(ranks[0], len(ranks), sum(map(operator.mul, sizes, kinds.values())))
        for sizes, ranks in members.items()
    )
    return sorted(classes, key=lambda shards: -shards.parameters)


def _num_elements(part: Iterable[Span]) -> int:
    return prod(stop - start for start, stop in part)


def _prepared(config: RunConfig) -> RunConfig:
    """The run as it can be run without numbers."""
    # torch.compile has nothing to compile without data; what is eager's is an upper bound of what it would keep.
    recompute = "none" if config.parallel.recompute == "budget" else config.parallel.recompute
    parallel = config.parallel.model_copy(update={"compile": False, "recompute": recompute})
    # Capacity is omitted: what is dropped needs no memory, and would have to be counted.
    phase = config.phases[0].model_copy(update={"capacity_factor": None})
    return config.model_copy(update={"parallel": parallel, "phases": [phase]})


def blank_batch(config: RunConfig, num_rows: int) -> Batch:
    """Rows of one document each; of answers in the stages that compare or reward them."""
    seq_len = config.phases[0].seq_len
    ids_BS, per_token = torch.zeros(num_rows, seq_len, dtype=torch.int64), {}
    if config.stage in ("reward", "dpo"):
        per_token = {name: torch.zeros(num_rows, seq_len) for name in (MARGIN, REFERENCE)}
        per_token[PAIR] = torch.ones_like(ids_BS)
    if config.stage == "rl":
        settings, names = config.stage_settings(RlConfig), [ADVANTAGE, ROLLOUT_LOGPROB]
        names += [OLD_LOGPROB] * settings.needs_old + [REFERENCE_LOGPROB] * settings.needs_reference
        per_token = {name: torch.zeros(num_rows, seq_len) for name in names}
    zeros = (0,) * num_rows
    return Batch(ids_BS, ids_BS.clone(), ((seq_len,),) * num_rows, zeros, zeros, per_token)
