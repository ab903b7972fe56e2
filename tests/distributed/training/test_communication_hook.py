"""One step in so many is measured, on its own, and told once."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from glmforge.config.layout import Layout
from glmforge.observe.metrics import METRICS
from glmforge.parallel.communication import COMMUNICATION_AXES
from glmforge.parallel.world import World
from glmforge.training.hooks.communication import CommunicationHook
from glmforge.training.profiling import Profiling
from helpers.distributed import run_ranks
from helpers.hooks import FakeTrainer


def rank_measured_steps(every: int, first_step: int) -> list[dict[str, Any]]:
    """The record after each of 6 steps; step k sums k numbers over tp, and something else happens between steps."""
    world = World.join(Layout(dp_shard=2, tp=2), torch.device("cpu"))
    trainer: Any = FakeTrainer(world=world)
    trainer.state.step = first_step
    hook = CommunicationHook(Profiling(), every)
    records = []
    for _ in range(6):
        hook.on_step_start(trainer)
        dist.all_reduce(torch.ones(trainer.state.step + 1), group=world.group("tp"))
        trainer.state.step += 1
        hook.on_step_end(trainer, None)  # type: ignore[arg-type]
        dist.all_reduce(torch.ones(1000), group=world.group("fsdp"))
        records.append(trainer.recorded())
    return records


@pytest.mark.parametrize(
    ("every", "first_step", "measured"),
    [(1, 0, [2, 3, 4, 5, 6]), (3, 0, [3, 6]), (3, 2, [6]), (100, 0, [])],
    ids=["all but the first", "every third", "not the first after a resume", "none"],
)
def test_which_steps_are_measured(every: int, first_step: int, measured: list[int]) -> None:
    for records in run_ranks(rank_measured_steps, 4, every, first_step):
        told = {first_step + index: record for index, record in enumerate(records, start=1) if record}
        assert list(told) == measured
        for step, record in told.items():
            assert record.keys() == {"comm_seconds_tp", "comm_bytes_tp"}
            assert record["comm_bytes_tp"] == 4 * step
            assert record["comm_seconds_tp"] > 0


def rank_failed_step() -> int:
    world = World.join(Layout(tp=2), torch.device("cpu"))
    trainer: Any = FakeTrainer(world=world)
    first, second = CommunicationHook(Profiling(), 1), CommunicationHook(Profiling(), 1)
    for hook in (first, second):
        hook.on_step_start(trainer)  # the first step is not measured
    first.on_step_start(trainer)
    dist.all_reduce(torch.ones(3))
    first.close()  # what the trainer does when a step raises
    second.on_step_start(trainer)
    dist.all_reduce(torch.ones(5))
    second.on_step_end(trainer, None)  # type: ignore[arg-type]
    return sum(value for name, value in trainer.recorded().items() if name.startswith("comm_bytes"))


def test_a_failed_step_leaves_no_measurement_open() -> None:
    assert run_ranks(rank_failed_step, 2) == [20, 20]


def test_every_axis_has_its_metrics() -> None:
    expected = {f"comm_{what}_{axis}" for what in ("seconds", "bytes") for axis in COMMUNICATION_AXES}
    assert {name for name in METRICS if name.startswith("comm_")} == expected
