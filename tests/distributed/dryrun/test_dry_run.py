"""A dry run tells what real ranks hold: the same watch on gloo ranks and on one rank that stands alone."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from glmforge.config.layout import resolve_layout
from glmforge.config.pipeline import SINGLE_STAGE_SCHEDULES
from glmforge.config.regularization import EwcConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.dryrun import excerpts
from glmforge.dryrun.observe import StandIns, observe_step
from glmforge.dryrun.rank import dry_run_rank
from glmforge.dryrun.run import dry_run, ranks_within_stage
from glmforge.dryrun.steps import Actions, RankFindings, StepResources, replay
from glmforge.dryrun.timeline import in_order, take_apart
from glmforge.parallel.build import initialize_shards
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import join_world
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Purpose
from helpers.distributed import run_ranks
from helpers.models import run_config

SEQ_LEN = 64
FEW = {"num_hidden_layers": 2}
"""One dense layer and one of experts, for demands that do not depend on how many there are."""


def config_of(
    parallel: dict[str, Any], batch_size: int = 8, compute: str = "fp32", seq_len: int = SEQ_LEN, **model: Any
) -> RunConfig:
    """In fp32, a dry run takes the CPU's kernels."""
    model = run_config().model.model_dump() | model
    phase = {"name": "main", "steps": 1, "seq_len": seq_len, "batch_size": batch_size, "aux_loss_weight": 1e-2}
    return run_config(model=model, phases=[phase], parallel=parallel, precision={"compute": compute})


def real_rank(config: RunConfig) -> tuple[dict[Purpose, int], StepResources]:
    """What a gloo rank held, and its step."""
    layout = resolve_layout(config, dist.get_world_size())
    with join_world(layout, timeout_s=60) as world:
        num_rows = layout.rank_batch_size(config.phases[0])
        seq_len = config.phases[0].seq_len
        make_batch = partial(random_rows, num_rows, seq_len, config.model.vocab_size, seed=world.data_rank)
        seen, _ = observe_step(config, world, make_batch, StandIns(), initialize)
    return seen.held, replay(in_order(seen))


def random_rows(num_rows: int, seq_len: int, vocab_size: int, seed: int) -> Batch:
    ids = torch.randint(0, vocab_size, (num_rows, seq_len), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, ids.clone(), ((seq_len,),) * num_rows, (0,) * num_rows, (0,) * num_rows)


def initialize(model: ParallelModel) -> None:
    for part in model.parts:
        initialize_shards(part, model.table, 0)


Job = tuple[RunConfig, int, int, tuple[int, ...], bool]
"""Configuration, world size, rank, the places in the pipeline asked for, and whether only an excerpt is run."""


def dry(*jobs: Job) -> list[RankFindings]:
    """Each in a process of its own: torch makes a fake process group only once in each."""
    return run_ranks(dry_rank, len(jobs), jobs, init_group=False)


def dry_rank(jobs: list[Job]) -> RankFindings:
    config, world_size, rank, places, shorten = jobs[int(os.environ["RANK"])]
    return dry_run_rank(config, world_size, rank, places=places, shorten=shorten)


LAYOUTS: dict[str, tuple[dict[str, Any], int]] = {
    "one process": ({"micro_batch_size": 2}, 1),
    "fsdp": ({"micro_batch_size": 1, "recompute": "full"}, 2),
    "hsdp": ({"dp_replicate": 2, "micro_batch_size": 1, "reduce_gradients": "last_micro_batch"}, 4),
    "tp + fsdp": ({"tp": 2, "micro_batch_size": 2}, 4),
    "ep + fsdp": ({"ep": 2, "micro_batch_size": 2, "recompute": "selective"}, 4),
    "ep in halves": ({"ep": 2, "micro_batch_size": 2, "ep_overlap": True}, 4),
    "pp + fsdp": ({"pp": 2, "micro_batch_size": 1, "reshard_after_forward": False}, 4),
    "pp + tp + cp + ep": ({"pp": 2, "tp": 2, "cp": 2, "ep": 2, "micro_batch_size": 2}, 8),
}


QUICK = ("one process", "pp + tp + cp + ep")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in LAYOUTS]
)
def test_a_dry_run_tells_what_real_ranks_hold(name: str) -> None:
    parallel, world_size = LAYOUTS[name]
    config = config_of(parallel)
    layout = resolve_layout(config, world_size)
    real = run_ranks(real_rank, world_size, config)
    ranks = [pp_rank * layout.stage_ranks for pp_rank in range(layout.pp)]
    for pp_rank, findings in enumerate(dry(*((config, world_size, rank, (), True) for rank in ranks))):
        held, step = real[ranks[pp_rank]]
        expected = findings.steps[pp_rank]
        assert held == findings.held
        # Real routing is uneven, which a dry run does not know; gloo keeps what it sends until it has been received, so
        # a rank whose peers are late holds more: of ranks that hold the same, the one with the least waited least.
        # Measured: equal to the byte without ep, pp and replicas; within 1.5 % with them, 3.5 % on a busy machine.
        late = layout.ep * layout.pp * layout.dp_replicate > 1
        peak = min(other.peak for same, other in real[ranks[pp_rank] :][: layout.stage_ranks] if same == held)
        assert peak == pytest.approx(expected.peak, rel=0.05 if late else 0.002)
        for (axis, what), number in expected.traffic.items():
            tolerance = 0.2 if (axis, what) == ("ep", "bytes") else 0
            if axis == "pp":  # real stages vote on how shapes are found, at most two numbers each way
                assert 0 <= step.traffic[axis, what] - number <= 16
            else:
                assert step.traffic[axis, what] == pytest.approx(number, rel=tolerance), (axis, what)


def test_a_dry_run_tells_what_two_ranks_hold_that_share_a_long_row() -> None:
    """Whose attention goes by the flash kernel in both, and neither holds anything of queries times keys: an eighth of
    those, in fp32 for each head, would be more than all of the peak. `benchmarks/long_sequences.py` takes 131,072."""
    seq_len, shape = 4096, {"max_position_embeddings": 4096, "num_hidden_layers": 2}
    config = config_of({"cp": 2, "recompute": "full"}, batch_size=1, seq_len=seq_len, **shape)
    (findings,) = dry((config, 2, 0, (), True))
    held, step = run_ranks(real_rank, 2, config)[0]
    assert (held, step.peak) == (findings.held, findings.steps[0].peak)
    assert step.peak < 4 * config.model.num_attention_heads * seq_len**2 / 8


@pytest.mark.full
def test_a_dry_run_tells_of_the_rank_along_cp_that_needs_most() -> None:
    """Here the second: its earlier chunk sees 1,024 keys, the most for the kernel that keeps probabilities."""
    shape = {"max_position_embeddings": 4096, "num_hidden_layers": 2}
    config = config_of({"cp": 4, "recompute": "full"}, batch_size=1, seq_len=4096, **shape)
    first, second = (dry_run(config, 4, rank=rank).peak for rank in (0, 1))
    assert dry_run(config, 4).peak == second > first


def test_a_dry_run_holds_what_elastic_weight_consolidation_does() -> None:
    """As much as the closed form says; a part of the step of its own, which leaves the peak of others alone."""
    without = config_of({"micro_batch_size": 1}, **FEW)
    regularization = without.regularization.model_copy(update={"ewc": EwcConfig(fisher=Path("none"))})
    with_it = without.model_copy(update={"regularization": regularization})
    plain, elastic = dry(*((config, 2, 0, (), True) for config in (without, with_it)))
    layout = resolve_layout(without, 2)
    planned = [estimate_memory(config, layout).fullest.at_peak[Purpose.OPTIMIZER] for config in (without, with_it)]
    more = elastic.held[Purpose.OPTIMIZER] - plain.held[Purpose.OPTIMIZER]
    assert more == pytest.approx(planned[1] - planned[0], rel=0.01)  # FSDP's blocks are rounded up
    assert elastic.steps[0].peak - plain.steps[0].peak == pytest.approx(more, rel=0.01)


SCHEDULES: list[tuple[str, dict[str, Any], int]] = [("1f1b", {}, 4)]
"""Schedule, other settings, micro-batches. The last stage has an MTP layer."""

MORE_SCHEDULES: list[tuple[str, dict[str, Any], int]] = [
    ("1f1b", {"reshard_after_forward": True}, 7),
    ("1f1b", {"cp": 2, "recompute": "full"}, 7),
    ("gpipe", {}, 7),
    ("gpipe", {"reshard_after_forward": True}, 5),
    ("interleaved_1f1b", {}, 3),  # fewer micro-batches than ranks
    ("interleaved_1f1b", {"reshard_after_forward": True}, 8),
    ("interleaved_1f1b", {"cp": 2, "recompute": "selective"}, 8),
    ("interleaved_1f1b", {"pipeline_stages_per_rank": 3}, 8),
    ("interleaved_1f1b", {"pipeline_stages_per_rank": 4}, 8),  # torch gives weights up and gathers them again
    ("looped_bfs", {}, 6),
    ("looped_bfs", {"reshard_after_forward": True}, 5),
    ("looped_bfs", {"pipeline_stages_per_rank": 4}, 6),
    ("interleaved_zero_bubble", {}, 8),
    ("interleaved_zero_bubble", {"cp": 2}, 8),
    ("interleaved_zero_bubble", {"pipeline_stages_per_rank": 4}, 8),
    ("zbv", {"cp": 2}, 9),
    ("zbv", {"cp": 2, "recompute": "selective"}, 9),
    ("dualpipev", {}, 11),
    ("dualpipev", {"cp": 2}, 8),
]


@pytest.mark.parametrize("compute", ["bf16", pytest.param("fp32", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("schedule", "settings", "number"),
    [*SCHEDULES, *(pytest.param(*case, marks=pytest.mark.full) for case in MORE_SCHEDULES)],
)
def test_the_step_composed_of_an_excerpt_is_the_whole_step_at_every_place(
    schedule: str, settings: dict[str, Any], number: int, compute: str
) -> None:
    """To the byte, by purpose, with its moment and traffic, on four pipeline ranks of two FSDP ranks each.

    In bf16 FSDP keeps gradients in two types; in fp32 in one.
    """
    num_stages = 4 * settings.get("pipeline_stages_per_rank", 1 if schedule in SINGLE_STAGE_SCHEDULES else 2)
    parallel = {"pp": 4, "micro_batch_size": 1, "pipeline_schedule": schedule} | settings
    layers = {"num_hidden_layers": num_stages, "first_k_dense_replace": 1}
    data_ranks = 2 // settings.get("cp", 1)
    config = config_of(
        parallel | {"pipeline_layers": [1] * num_stages}, batch_size=data_ranks * number, compute=compute, **layers
    )
    composed = {kind.pp_rank: kind.step for kind in dry_run(config, 8).classes}
    within = ranks_within_stage(config, resolve_layout(config, 8))
    wholes = {one: dry(*((config, 8, 2 * place + one, (), False) for place in range(4))) for one in within}
    for place in range(4):
        whole = max((findings[place].steps[place] for findings in wholes.values()), key=lambda step: step.peak)
        # Under GPipe in bf16 a composed step has been seen 0.18 % above the whole one; why is not known.
        above = 0.002 if (schedule, compute) == ("gpipe", "bf16") else 0.0
        assert 0 <= composed[place].peak / whole.peak - 1 <= above
        assert composed[place].moment == whole.moment
        assert composed[place].traffic == whole.traffic
        for purpose in Purpose:
            # What a backward pass leaves to the next one has two names, depending on how long it will last.
            if purpose not in (Purpose.UNREDUCED, Purpose.WORKING) and not above:
                assert composed[place].at_peak[purpose] == whole.at_peak[purpose]


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [
        pytest.param(1, {}, marks=pytest.mark.full),
        pytest.param(1, {"reduce_gradients": "last_micro_batch"}, marks=pytest.mark.full),
        pytest.param(2, {}, marks=pytest.mark.full),
        (2, {"reduce_gradients": "last_micro_batch"}),
        pytest.param(2, {"dp_replicate": 2}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_the_step_prolonged_is_the_whole_step(world_size: int, parallel: dict[str, Any]) -> None:
    parallel = parallel | {"micro_batch_size": 1}
    config = config_of(parallel, batch_size=5 * world_size)  # 5 micro-batches
    excerpt, whole = dry((config, world_size, 0, (), True), (config, world_size, 0, (), False))
    assert excerpt.steps[0].traffic == whole.steps[0].traffic
    # A number of the last micro-batch outlives it where there are two of them, and is not there with more.
    assert 0 <= excerpt.steps[0].peak - whole.steps[0].peak <= 4


@pytest.mark.parametrize("schedule", [pytest.param("interleaved_1f1b", marks=pytest.mark.full), "zbv"])
def test_schedules_of_several_stages_take_what_real_ranks_take(schedule: str) -> None:
    config = config_of({"pp": 2, "micro_batch_size": 1, "pipeline_schedule": schedule})
    (findings,) = dry((config, 4, 0, (), True))
    held, step = run_ranks(real_rank, 4, config)[0]
    assert findings.held == held
    # gloo holds on to what is on its way.
    assert step.peak == pytest.approx(findings.steps[0].peak, rel=0.1)


def test_more_rows_for_an_expert_rank_need_more_memory_and_traffic() -> None:
    config = config_of({"ep": 2, "micro_batch_size": 2}, **FEW)
    steps = [
        findings.steps[0]
        for imbalance in (1.0, 1.5)
        for findings in run_ranks(dry_run_rank, 1, config, 2, 0, imbalance, init_group=False)
    ]
    assert steps[1].peak > steps[0].peak
    assert steps[1].traffic["ep", "bytes"] > steps[0].traffic["ep", "bytes"]
    assert steps[1].traffic["ep", "calls"] == steps[0].traffic["ep", "calls"]


def test_ranks_with_smaller_shards_are_told_apart() -> None:
    """FSDP pads weights and gradients to the largest shard, the optimizer does not: AdamW has 8 bytes per element."""
    config = config_of({"micro_batch_size": 4}, batch_size=12, **FEW)
    config = config.model_copy(update={"optim": config.optim.model_copy(update={"matrix_optimizer": "adamw"})})
    first, last = dry((config, 3, 0, (), True), (config, 3, 2, (), True))
    assert first.shard_classes == last.shard_classes
    large, small = first.shard_classes
    assert (large.first_rank, large.num_ranks, small.first_rank, small.num_ranks) == (0, 2, 2, 1)
    assert first.held[Purpose.WEIGHTS] == last.held[Purpose.WEIGHTS]
    assert first.held[Purpose.OPTIMIZER] - last.held[Purpose.OPTIMIZER] == 8 * (large.parameters - small.parameters) > 0


def test_bf16_states_are_half_but_for_the_numbers_of_updates() -> None:
    config = config_of({"tp": 2, "ep": 2}, **FEW)
    half = config.model_copy(update={"optim": config.optim.model_copy(update={"state_dtype": "bf16"})})
    first, second = dry((config, 4, 0, (), True), (half, 4, 0, (), True))
    held, halved = (findings.held[Purpose.OPTIMIZER] for findings in (first, second))
    # 4 bytes for each parameter's number of updates; in fp32 only AdamW counts them
    assert held / 2 < halved < held / 2 + 4 * 100


def test_triton_kernels_are_laid_out_without_memory() -> None:
    """In bf16 a dry run takes a GPU's kernels. A step holds less without fp32 copies of logits and norms."""
    pytest.importorskip("triton")
    chosen = dict.fromkeys(("rms_norm", "qk_rope", "cross_entropy", "symmetric_matmul"), "triton")
    usual = config_of({"micro_batch_size": 2}, **FEW).model_dump() | {"precision": {"compute": "bf16"}}
    plain, triton = (run_config(**(usual | {"kernels": kernels})) for kernels in ({}, chosen))
    peaks = [findings.steps[0].peak for findings in dry((plain, 1, 0, (), True), (triton, 1, 0, (), True))]
    assert peaks[1] < peaks[0]


def test_what_dtensor_infers_on_whole_shapes_is_not_memory() -> None:
    """Making weights and optimizer state leaves nothing behind but these, and needs nothing more while it lasts."""
    config = config_of({"tp": 2, "ep": 4}, batch_size=32)
    (working,) = run_ranks(working_memory_before, 1, config, 64, init_group=False)
    # For the batch's token ids; the whole embedding alone has 96 KiB, the rank's weights 21.
    assert working <= 4096


def working_memory_before(config: RunConfig, world_size: int) -> int:
    """The most working memory at once before the first pass of a dry run of rank 0."""
    taken_apart = []

    def keep(*args: Any) -> Actions:
        taken_apart.append(take_apart(*args))
        return taken_apart[-1]

    excerpts.take_apart = keep
    dry_run_rank(config, world_size, 0)
    return max(action.at_peak[Purpose.WORKING] for action in taken_apart[0].before)
