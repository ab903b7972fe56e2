"""Pipelines whose times are known in closed form, and that no order of passes is impossible."""

import pytest

from glmforge.plan.time.schedules import Pass, pipeline_orders
from glmforge.plan.time.simulate import simulate


def total(schedule: str, per_rank: int, num_micro_batches: int, message: float = 0.0) -> float:
    """With four ranks, passes of a rank's layers take 1 forward, 1 for inputs and 1 for weights."""
    orders = pipeline_orders(schedule, 4, per_rank, num_micro_batches)
    lengths: dict[Pass, float] = {"forward": 1.0, "input": 1.0, "weight": 1.0, "backward": 2.0}
    seconds = {(kind, stage): length / per_rank for kind, length in lengths.items() for stage in range(4 * per_rank)}
    return max(times[-1][1] for times in simulate(orders, seconds, message, [0.0] * 4))


@pytest.mark.parametrize(
    ("schedule", "per_rank", "expected"),
    [
        ("gpipe", 1, 3 * (16 + 3)),
        ("1f1b", 1, 3 * (16 + 3)),
        ("interleaved_1f1b", 2, 3 * (16 + 3 / 2)),
        ("interleaved_1f1b", 4, 3 * (16 + 3 / 4)),
        ("zbv", 2, 3 * 16 + 3 / 2),  # no rank waits but for the first micro-batch to come
    ],
)
def test_bubbles_in_closed_form(schedule: str, per_rank: int, expected: float) -> None:
    """(P - 1) / V of a micro-batch's three units of time are lost, V being the stages of a rank."""
    assert total(schedule, per_rank, 16) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["interleaved_zero_bubble", "zbv", "dualpipev"])
def test_splitting_the_backward_pass_shrinks_the_bubble(schedule: str) -> None:
    assert 3 * 16 < total(schedule, 2, 16) < total("interleaved_1f1b", 2, 16)


def test_messages_delay_the_first_micro_batch_and_its_gradients() -> None:
    assert total("gpipe", 1, 16, message=0.25) == pytest.approx(total("gpipe", 1, 16) + 2 * 3 * 0.25)
