"""The orders of passes are torch's own."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action
from torch.testing._internal.distributed.fake_pg import FakeStore

from glmforge.config.pipeline import stages_of_rank
from glmforge.dryrun.schedules import order_of_loop
from glmforge.parallel.pipeline import schedule_class
from glmforge.plan.time.schedules import Pass, pipeline_orders

PASSES: dict[str, Pass] = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_INPUT": "input",
    "BACKWARD_WEIGHT": "weight",
}


@pytest.fixture
def four_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("num_micro_batches", [8, 9, 16])
@pytest.mark.parametrize(
    ("schedule", "per_rank"),
    [
        ("interleaved_1f1b", 2),
        ("interleaved_1f1b", 3),
        ("looped_bfs", 2),
        ("interleaved_zero_bubble", 2),
        ("interleaved_zero_bubble", 3),
        ("zbv", 2),
        ("dualpipev", 2),
    ],
)
def test_orders_are_torch_s(schedule: str, per_rank: int, num_micro_batches: int, four_ranks: None) -> None:
    if schedule.startswith("interleaved") and num_micro_batches == 9:
        num_micro_batches = 6  # a single round, longer than there are ranks
    stages = [
        PipelineStage(nn.Identity(), index, 4 * per_rank, torch.device("cpu"), (), ())
        for index in stages_of_rank(schedule, 0, 4, per_rank)
    ]
    made = schedule_class(schedule)(stages, num_micro_batches, loss_fn=lambda output, _: output, scale_grads=False)
    orders = pipeline_orders(schedule, 4, per_rank, num_micro_batches)
    for rank, actions in made.pipeline_order.items():
        found = [(PASSES[one.computation_type.name], one.stage_index, one.microbatch_index) for one in _flat(actions)]
        assert found == [tuple(task) for task in orders[rank]], rank


def test_few_micro_batches_under_zbv(four_ranks: None) -> None:
    """torch plans for as many as fill the pipeline, and leaves out those that there are not."""
    stages = [PipelineStage(nn.Identity(), index, 8, torch.device("cpu"), (), ()) for index in (0, 7)]
    made = schedule_class("zbv")(stages, 3, loss_fn=lambda output, _: output, scale_grads=False)
    for rank, order in enumerate(pipeline_orders("zbv", 4, 2, 3)):
        found = [(one.stage_index, one.microbatch_index) for one in _flat(made.pipeline_order[rank])]
        assert found == [(task.stage, task.micro_batch) for task in order]


def _flat(actions: list[_Action | None]) -> list[_Action]:
    return [one for action in actions if action is not None for one in (action.sub_actions or (action,))]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("rank", range(4))
def test_loops_are_those_of_the_dry_run(schedule: str, rank: int) -> None:
    found = [task.kind for task in pipeline_orders(schedule, 4, 1, 6)[rank]]
    assert found == [PASSES[task.kind] for task in order_of_loop(schedule, 6, 4 - rank)]
