"""The windowed queue of groups: nothing is lost, nothing too old, and a step is never waited for in vain."""

import random

import pytest

from glmforge.config.rl_schedule import ScheduleConfig
from glmforge.rl.group_queue import GroupQueue


def course(seed: int, steps_ahead: int, window: float, max_age: int | None) -> None:
    """Many steps with answers of any length, and groups that are dropped; what must be true of each step."""
    draw, size = random.Random(seed), 4
    schedule = ScheduleConfig(kind="asynchronous", steps_ahead=steps_ahead, window=window, max_age=max_age)
    most = size * (steps_ahead + 1)
    queue = GroupQueue(size, int(window * most), schedule.oldest)
    begun: dict[int, int] = {}
    ends: dict[int, float] = {}
    gone: set[int] = set()
    for step in range(60):

        def top_up(step: int = step) -> None:
            new = range(len(begun), len(begun) + most - len(queue.begun))
            queue.ask(new, step)
            begun.update(dict.fromkeys(new, step))
            ends.update({number: draw.expovariate(1 / draw.choice((1, 1, 30))) for number in new})

        top_up()
        assert not queue.too_old(step)
        while (taken := queue.take(step)) is None:
            waiting = [number for number in queue.begun if number not in queue.complete]
            assert waiting, "all groups are complete, and the step still waits"
            number = min(waiting, key=lambda one: ends[one])
            if draw.random() < 0.2:
                queue.remove([number])
                gone.add(number)
                top_up()
            else:
                queue.complete.add(number)
        assert len(taken) == len(set(taken)) == size
        assert gone.isdisjoint(taken)
        assert all(step - begun[number] <= schedule.oldest for number in taken)
        gone.update(taken)
        head = min(queue.begun, default=0)
        assert all(number < head + queue.window + size for number in taken)
    assert gone | queue.begun.keys() == set(range(len(begun)))
    assert gone.isdisjoint(queue.begun)


@pytest.mark.parametrize("max_age", [None, "least"])
@pytest.mark.parametrize("window", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("steps_ahead", [1, 2, 5])
def test_no_group_is_lost_or_becomes_too_old_and_no_step_waits_in_vain(
    steps_ahead: int, window: float, max_age: str | None
) -> None:
    for seed in range(20):
        course(seed, steps_ahead, window, steps_ahead if max_age else None)


def queue_of(begun: list[int], complete: set[int], *, size: int = 2, window: int = 3, max_age: int = 9) -> GroupQueue:
    queue = GroupQueue(size, window, max_age)
    for number, version in enumerate(begun):
        queue.ask([number], version)
    queue.complete |= complete
    return queue


def test_complete_groups_overtake_within_the_window_only() -> None:
    assert queue_of([0] * 6, {1, 2}).take(0) == [1, 2]
    assert queue_of([0] * 6, {2, 3}).take(0) is None  # 3 is three behind 0, which is not complete
    assert queue_of([0] * 6, {0, 3}).take(0) == [0, 3]  # 1 is the oldest now


def test_a_step_waits_for_what_would_become_too_old() -> None:
    assert queue_of([0] * 4, {1, 2}, max_age=1).take(0) == [1, 2]  # 0 and 3 in the next step
    assert queue_of([0] * 4, {1, 2}, max_age=1).take(1) is None
    late = queue_of([0] * 6, set(range(6)), max_age=1)
    assert late.too_old(0) == [4, 5]  # the third step from here
    late.ask(late.too_old(0), 1)
    assert late.too_old(0) == []
    assert late.complete == {0, 1, 2, 3}


def test_a_bound_below_the_steps_ahead_is_refused() -> None:
    assert ScheduleConfig(kind="asynchronous").oldest == 3
    assert ScheduleConfig(kind="one_step_off").oldest == 1
    with pytest.raises(ValueError, match="max_age"):
        ScheduleConfig(kind="asynchronous", steps_ahead=2, max_age=1)
