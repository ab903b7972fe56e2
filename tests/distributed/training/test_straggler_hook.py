"""Made-up seconds are compared exactly; and a rank that really works more is found."""

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from glmforge.config.layout import Layout
from glmforge.parallel.world import World
from glmforge.training.hooks import straggler
from glmforge.training.hooks.communication import CommunicationHook
from glmforge.training.hooks.straggler import StragglerHook, own_seconds
from glmforge.training.profiling import Profiling
from glmforge.training.trainer import Hook
from helpers.distributed import run_ranks
from helpers.hooks import FakeTrainer, events

CASES: list[tuple[list[float | None], float, dict[str, Any], str]] = [
    (
        [2.0, 2.0, 5.0, 2.0],
        1.25,
        {"straggler_ratio": 2.5, "slowest_rank": 2},
        "5.000 s of compute time, median 2.000",
    ),
    ([2.0, 2.0, 5.0, 2.0], 2.75, {"straggler_ratio": 2.5, "slowest_rank": 2}, ""),
    ([4.5, 4.0, 4.0, 4.0], 1.25, {"straggler_ratio": 1.125, "slowest_rank": 0}, ""),
    ([4.0, 4.0, None, 4.0], 1.25, {}, ""),  # where the profiler is not permitted
]
"""Own seconds of each rank, the ratio that is reported, the metrics, and what the event says."""


class Measured(Hook):
    """Records made-up communication in every step."""

    def __init__(self, **metrics: float | None) -> None:
        self.metrics = metrics

    def on_step_end(self, trainer: Any, result: Any) -> None:
        trainer.record(**self.metrics)


def rank_made_up(root: Path) -> list[list[dict[str, Any]]]:
    """For each case, the record after each of 4 steps of which every second is compared; a step lasts 10 s."""
    world = World.join(Layout(dp_shard=4), torch.device("cpu"))
    straggler.socket = SimpleNamespace(gethostname=lambda: f"node-{world.rank}-é")  # type: ignore[assignment]
    found = []
    for number, (own, ratio, _, _) in enumerate(CASES):
        seconds = own[world.rank]
        waited = None if seconds is None else 10.0 - seconds
        measured = Measured(comm_bytes_fsdp=8, comm_seconds_fsdp=waited, comm_bytes_tp=8, comm_seconds_tp=0.0)
        trainer = FakeTrainer(measured, StragglerHook(2, ratio), world=world, root=root / str(number))
        records = []
        for _ in range(4):
            trainer.step(seconds=10.0)
            records.append({name: v for name, v in trainer.recorded().items() if not name.startswith("comm_")})
        found.append(records)
    return found


def test_the_slowest_rank_is_compared_with_the_median(tmp_path: Path) -> None:
    for found in run_ranks(rank_made_up, 4, tmp_path):
        assert found == [[{}, record, {}, record] for _, _, record, _ in CASES]
    for number, (_, _, _, said) in enumerate(CASES):
        told = events(tmp_path / str(number))
        assert [(event, step) for event, step, _ in told] == ([("straggler", 2), ("straggler", 4)] if said else [])
        assert all(f"rank 2 on node-2-é: {said}" in detail for _, _, detail in told)


def test_own_time_is_never_negative_and_unknown_if_some_is() -> None:
    nothing = {"comm_bytes_pp": None, "comm_seconds_pp": None}
    both = nothing | {"comm_bytes_tp": 8, "comm_seconds_tp": 2.0, "comm_bytes_fsdp": 0, "comm_seconds_fsdp": 2.0}
    assert own_seconds(3.0, nothing) == 3.0
    assert own_seconds(3.0, both) == 0.0
    assert math.isnan(own_seconds(3.0, both | {"comm_seconds_tp": None}))


def test_a_single_process_has_nobody_to_compare_with() -> None:
    trainer = FakeTrainer(Measured(comm_bytes_tp=None), StragglerHook(1, 1.25))
    trainer.step()
    assert trainer.recorded() == {}


class Trainer(FakeTrainer):
    """Rank 1 works half a second of its processor's time before it meets the others, in every step."""

    def compute(self) -> None:
        started = time.process_time()
        while self.world.rank == 1 and time.process_time() - started < 0.5:
            torch.ones(64, 64) @ torch.ones(64, 64)
        dist.all_reduce(torch.ones(8))


def rank_working(root: Path) -> dict[str, Any]:
    world = World.join(Layout(dp_shard=2), torch.device("cpu"))
    trainer = Trainer(CommunicationHook(Profiling(), 2), StragglerHook(2, 1.25), world=world, root=root)
    trainer.step()  # the first is never measured
    trainer.step()
    return {name: value for name, value in trainer.recorded().items() if not name.startswith("comm_")}


def test_the_rank_that_works_more_is_found(tmp_path: Path) -> None:
    record, *others = run_ranks(rank_working, 2, tmp_path)
    assert others == [record]
    assert record["slowest_rank"] == 1
    # The others only wait: half a second of work against the little they do.
    assert record["straggler_ratio"] > 1.25
    assert events(tmp_path)[0][0] == "straggler"
