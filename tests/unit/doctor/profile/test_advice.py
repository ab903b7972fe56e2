"""The first advice on profiles: seconds as measured on two gloo ranks with a fault planted in each (see
`tests/integration/monitor/test_profile.py`), and on one process."""

from dataclasses import replace
from typing import Any

import pytest

from glmforge.doctor.profile.account import StepParts
from glmforge.doctor.profile.advice import advise
from glmforge.doctor.profile.ranges import MODEL_PHASES
from glmforge.doctor.profile.roofline import PhaseWork, Roofline
from glmforge.doctor.profile.train import RankProfile, TrainProfile

# Milliseconds of two ranks without a fault, on two idle cores each.
HEALTHY: dict[str, float] = {
    "attention": 21.9,
    "experts": 19.2,
    "router and dispatch": 17.0,
    "other model": 33.2,
    "loss head": 9.4,
    "optimizer": 10.0,
    "sharding": 5.0,
    "data": 1.5,
    "idle": 3.0,
}
SETTINGS = {
    "data.num_workers": 0,
    "data.prefetch": 2,
    "parallel.micro_batch_size": 8,
    "micro_batches": 1,
    "seq_len": 64,
    "parallel.recompute": "none",
    "capacity_factor": None,
}


def rank(exposed: dict[str, float] | None = None, **phases: float) -> RankProfile:
    spent = HEALTHY | {name.replace("_", " "): value for name, value in phases.items()}
    parts = StepParts(
        {name: {"forward": value / 1e3, "backward": 0.0} for name, value in spent.items()},
        {axis: value / 1e3 for axis, value in (exposed or {}).items()},
    )
    return RankProfile(parts.total, parts)


def profile(*ranks: RankProfile, reached: float = 0.5, **changes: Any) -> TrainProfile:
    """Of ranks whose model reaches that share of the peaks in every phase."""
    work = {name: PhaseWork(limit=reached * ranks[0].parts.of(name)) for name in MODEL_PHASES}
    settings = SETTINGS | changes.pop("settings", {})
    step = ranks[0].profiled_s
    found = TrainProfile(
        "CPU", "pretrain", 3, 1024, step, step, list(ranks), Roofline(1e11, 4e10), work, {}, 1.0, settings
    )
    return replace(found, **changes)


CASES = {
    "slow data": profile(
        rank(data=151.9, exposed={"fsdp": 44, "ep": 42}), rank(data=152, exposed={"fsdp": 41, "ep": 70})
    ),
    "slow data on one rank": profile(rank(data=80), rank(exposed={"fsdp": 80})),
    "slow link": profile(
        rank(exposed={"fsdp": 54, "ep": 163}), rank(exposed={"fsdp": 52, "ep": 155}), traffic={"ep": 3e6}
    ),
    "imbalanced experts": profile(
        rank(experts=124, exposed={"ep": 9}), rank(experts=4, exposed={"ep": 129}), expert_load=2.0
    ),
    "straggler": profile(rank(attention=60, exposed={"fsdp": 3}), rank(exposed={"fsdp": 41})),
    "recompute": profile(rank(recompute=36), settings={"parallel.recompute": "full"}, lighter_recompute="selective"),
    "idle": profile(rank(idle=50), device="H100"),
    "small batches": profile(rank(), reached=0.06),
    "small steps": profile(rank(optimizer=60)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_advice(name: str) -> None:
    first = advise(CASES[name])[0]
    assert name.startswith(first.rule), first


def test_a_link_is_named_by_its_axis_and_its_rate() -> None:
    slow = replace(CASES["slow link"], peaks=Roofline(1e11, 4e10, {"ep": 2**31}))
    text = advise(slow)[0].text
    # 3e6 bytes in the 155 ms of the rank that waits least
    assert "along ep" in text
    assert "18.5 MiB/s, measured alone 2.00 GiB/s: messages are small" in text


def test_waiting_for_a_late_rank_is_no_slow_link() -> None:
    assert [one.rule for one in advise(CASES["imbalanced experts"])] == ["imbalanced experts"]


def test_recomputation_that_memory_demands_comes_after_what_can_be_changed() -> None:
    needed = profile(rank(recompute=60, data=20), settings={"parallel.recompute": "full"}, lighter_recompute=None)
    first, second = advise(needed)[:2]
    assert (first.rule, second.rule) == ("slow data", "recompute")
    assert "does not allow less" in second.text


def test_a_healthy_step_has_no_advice() -> None:
    assert advise(profile(rank(), rank())) == []
