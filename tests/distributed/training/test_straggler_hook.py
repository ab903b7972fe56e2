"""Made-up seconds are compared exactly; and a rank that really works more is found."""

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from glmforge.config.layout import Layout
from glmforge.parallel.communication import Traffic
from glmforge.parallel.world import World
from glmforge.training.hooks import straggler
from glmforge.training.hooks.communication import CommunicationHook
from glmforge.training.hooks.straggler import StragglerHook, own_seconds
from helpers.distributed import run_ranks
from helpers.hooks import FakeTrainer, events

CASES: list[tuple[list[float | None], float, dict[str, Any], str]] = [
    (
        [2.0, 2.0, 5.0, 2.0],
        1.25,
        {"straggler_ratio": 2.5, "slowest_rank": 2},
        "5.000 s of its own, the median is 2.000",
    ),
    ([2.0, 2.0, 5.0, 2.0], 2.75, {"straggler_ratio": 2.5, "slowest_rank": 2}, ""),
    ([4.5, 4.0, 4.0, 4.0], 1.25, {"straggler_ratio": 1.125, "slowest_rank": 0}, ""),
    ([4.0, 4.0, None, 4.0], 1.25, {}, ""),  # where the profiler is not permitted
]
"""Own seconds of each rank, the ratio that is reported, the metrics, and what the event says."""


def rank_made_up(root: Path) -> list[list[dict[str, Any]]]:
    """For each case, the record after each of 4 steps of which every second is compared; a step lasts 10 s."""
    world = World.join(Layout(dp_shard=4), torch.device("cpu"))
    straggler.socket = SimpleNamespace(gethostname=lambda: f"node-{world.rank}-é")  # type: ignore[assignment]
    found = []
    for number, (own, ratio, _, _) in enumerate(CASES):
        seconds = own[world.rank]
        waited = None if seconds is None else 10.0 - seconds
        communication: Any = SimpleNamespace(measured={"fsdp": Traffic(seconds=waited), "tp": Traffic(seconds=0.0)})
        hook = StragglerHook(root / str(number), 2, ratio, communication)
        trainer = FakeTrainer(hook, world=world)
        records = []
        for _ in range(4):
            trainer.step(seconds=10.0)
            records.append(hook.take_record())
        assert hook.take_record() == {}
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
    assert own_seconds(3.0, {}) == 3.0
    assert own_seconds(3.0, {"tp": Traffic(seconds=2.0), "fsdp": Traffic(seconds=2.0)}) == 0.0
    assert math.isnan(own_seconds(3.0, {"tp": Traffic(seconds=9.0), "fsdp": Traffic()}))


def test_a_single_process_has_nobody_to_compare_with(tmp_path: Path) -> None:
    communication: Any = SimpleNamespace(measured={})
    hook = StragglerHook(tmp_path, 1, 1.25, communication)
    FakeTrainer(hook).step()
    assert hook.take_record() == {}


class Trainer(FakeTrainer):
    """Rank 1 works half a second of its processor's time before it meets the others, in every step."""

    def compute(self) -> None:
        started = time.process_time()
        while self.world.rank == 1 and time.process_time() - started < 0.5:
            torch.ones(64, 64) @ torch.ones(64, 64)
        dist.all_reduce(torch.ones(8))


def rank_working(root: Path) -> dict[str, Any]:
    world = World.join(Layout(dp_shard=2), torch.device("cpu"))
    communication = CommunicationHook(2)
    hook = StragglerHook(root, 2, 1.25, communication)
    trainer = Trainer(communication, hook, world=world)
    trainer.step()  # the first is never measured
    trainer.step()
    return hook.take_record()


def test_the_rank_that_works_more_is_found(tmp_path: Path) -> None:
    record, *others = run_ranks(rank_working, 2, tmp_path)
    assert others == [record]
    assert record["slowest_rank"] == 1
    # The others only wait: half a second of work against the little they do.
    assert record["straggler_ratio"] > 1.25
    assert events(tmp_path)[0][0] == "straggler"
