"""The demo's plan: what fits into the time, and what a new plan makes of a pace that was not expected."""

import pytest

from glmforge.config import load_config
from glmforge.optim.schedule import learning_rate_schedule
from glmforge.recipes.demo import pace


@pytest.mark.parametrize(
    ("total", "before", "elapsed", "left"),
    [
        (300, 20, 30, 250),  # 20 s for what follows
        (300, 140, 150, 30),  # slow stages: no more than 120 s are set aside
        (300, 100, 290, 0),
    ],
)
def test_time_is_set_aside_for_what_follows(total, before, elapsed, left):
    assert pace.training_seconds(total, before, elapsed) == pytest.approx(left)


def test_no_fewer_steps_than_the_story_needs():
    assert pace.steps_within(0.0, 33.0) == pace.MIN_STEPS
    assert pace.steps_within(200.0, 0.5) == 400


@pytest.mark.parametrize("step_seconds", [0.1, 0.5, 2.0, 40.0])
@pytest.mark.parametrize("done", [2, 60, 130])
def test_a_new_plan_fills_the_time(done, step_seconds):
    total = pace.next_plan(done, 50.0, step_seconds, mtp_cost=1.5)
    without, with_mtp = pace.steps_of_phases(total, done)
    assert without + with_mtp == total
    assert without >= done
    left = (without - done + 1.5 * with_mtp) * step_seconds
    # A step more would not fit, rounding of the phases aside; a run that is out of time still gets its two steps.
    assert 50.0 - 3 * step_seconds < left <= 50.0 + step_seconds or total == done + 2


@pytest.mark.parametrize("step_seconds", [0.2, 0.5, 1.5])
def test_the_learning_rate_followed_until_the_kill_is_that_of_the_new_plan(step_seconds):
    """A machine up to three times as slow as measured, or faster: the curve is not bent, and ends at `min_lr`."""
    planned = 400
    kill_at = int(planned * pace.KILL_AT_SHARE * min(1.0, 0.5 / step_seconds))
    seconds_left = planned * 0.5 * (1 - pace.KILL_AT_SHARE)
    replanned = pace.next_plan(kill_at, seconds_left, step_seconds, mtp_cost=1.5)
    old, new = (
        load_config("demo", [f"phases.0.steps={without}", f"phases.1.steps={with_mtp}"])
        for without, with_mtp in (pace.steps_of_phases(planned), pace.steps_of_phases(replanned, kill_at))
    )
    rates = [learning_rate_schedule(config) for config in (old, new)]
    for step in range(1, kill_at + 1):
        assert rates[0](old.tokens_after(step)) == rates[1](new.tokens_after(step)), step
    assert rates[1](new.num_tokens) == new.optim.min_lr


def test_the_kill_costs_few_steps_and_comes_before_the_decay():
    for num_steps in (pace.MIN_STEPS, 32, 100, 607, 5000):
        every = max(1, num_steps // pace.CHECKPOINTS_PER_RUN)
        killed = pace.kill_step(num_steps, every)
        assert 0 < killed - (killed - 1) // every * every <= pace.KILL_AFTER_CHECKPOINT
        assert every < killed < num_steps / 2  # the demo's learning rate is constant until there


def test_the_pace_is_that_of_the_latter_half():
    assert pace.seconds_per_step([0.0, 1.0, 2.0]) is None
    clock = [float(i) for i in range(10)] + [9.0 + 3 * i for i in range(1, 12)]
    assert pace.seconds_per_step(clock) == pytest.approx(3.0)
    assert pace.median_interval([0.0, 1.0, 2.0, 12.0]) == 1.0


@pytest.mark.parametrize(
    ("step", "step_seconds", "left", "late"),
    [(100, 0.5, 100.0, False), (100, 0.5, 90.0, False), (100, 1.0, 100.0, True), (295, 9.0, 1.0, False)],
)
def test_late_is_much_later_than_planned(step, step_seconds, left, late):
    assert pace.is_late(step, 300, step_seconds, left) == late
