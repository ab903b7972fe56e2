"""How many micro-batches a rank keeps: against torch's own schedules, whose orders are followed pass by pass."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from glmforge.config.pipeline import stages_of_rank
from glmforge.plan.memory.in_flight import passes_in_flight

_CLASSES: dict[str, Any] = {
    "interleaved_1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}


def torchs_moments(schedule: str, pp: int, rank: int, per_rank: int, number: int) -> set[tuple[int, ...]]:
    """The counts after each of the rank's actions; a pass is kept until the gradients of its weights are there."""
    self: Any = SimpleNamespace(
        pp_group_size=pp,
        n_local_stages=per_rank,
        num_stages=pp * per_rank,
        _num_stages=pp * per_rank,
        _n_microbatches=number,
        number_of_rounds=max(1, number // pp),
        microbatches_per_round=number // max(1, number // pp),
    )
    actions = _CLASSES[schedule]._calculate_single_rank_operations(self, rank)
    slots = {stage: slot for slot, stage in enumerate(stages_of_rank(schedule, rank, pp, per_rank))}
    level: Counter[int] = Counter()
    moments = set()
    for action in actions:
        for single in () if action is None else (action.sub_actions or (action,)):
            kind = single.computation_type.name
            level[slots[single.stage_index]] += {"FORWARD": 1, "FULL_BACKWARD": -1, "BACKWARD_WEIGHT": -1}.get(kind, 0)
            moments.add(tuple(level[slot] for slot in range(per_rank)))
    return moments


@pytest.mark.parametrize("schedule", list(_CLASSES))
@pytest.mark.parametrize(("pp", "per_rank", "number"), [(2, 2, 4), (4, 2, 8), (4, 2, 24), (4, 3, 16), (8, 2, 64)])
def test_the_fullest_moments_are_those_of_torch_s_schedules(schedule: str, pp: int, per_rank: int, number: int) -> None:
    if schedule in ("zbv", "dualpipev") and per_rank != 2:
        pytest.skip("a V has two arms")
    for rank in range(pp):
        found = passes_in_flight(schedule, pp, rank, per_rank, number)
        moments = torchs_moments(schedule, pp, rank, per_rank, number)
        fullest = max(map(sum, moments))
        assert max(map(sum, found)) == fullest
        for moment in moments:
            assert any(all(map(int.__ge__, one, moment)) for one in found), (rank, moment, found)


@pytest.mark.parametrize(
    ("schedule", "number", "expected"), [("gpipe", 12, 12), ("1f1b", 12, 4), ("1f1b", 2, 2), ("looped_bfs", 6, 6)]
)
def test_the_first_rank_of_simple_schedules(schedule: str, number: int, expected: int) -> None:
    per_rank = 2 if schedule == "looped_bfs" else 1
    assert passes_in_flight(schedule, 4, 0, per_rank, number) == ((expected,) * per_rank,)
