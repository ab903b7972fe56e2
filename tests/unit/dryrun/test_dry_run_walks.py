"""The shortest sequence of tasks that shows all situations of a schedule, and replaying a schedule from it."""

from collections import Counter

import pytest

from glmforge.dryrun.steps import Action, Actions, Task, compose
from glmforge.dryrun.walk import shortest_walk, situation_of, wanted_of
from glmforge.plan.memory.purposes import Purpose

U, F, B, INPUT, WEIGHT, G, R = (
    Task(kind, 0)
    for kind in ("UNSHARD", "FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT", "REDUCE_GRAD", "RESHARD")
)


@pytest.mark.parametrize(
    ("order", "with_previous", "length"),
    [
        ([U, *[F] * 20, *[B, F] * 100, *[B] * 20, G, R], False, 7),  # U F F B B G R
        ([U, *[F] * 20, *[B, F] * 100, *[B] * 20, G, R], True, 9),  # every pass after every pass: U F F B F B B G R
        ([U, F, B, G, R], True, 5),
        (
            [U, F, F, INPUT, F, INPUT, WEIGHT, INPUT, WEIGHT, WEIGHT, G, R],
            False,
            12,
        ),  # nothing is left out: each finds other gradients
    ],
)
def test_a_walk_has_every_situation_and_no_more_tasks_than_needed(
    order: list[Task], with_previous: bool, length: int
) -> None:
    wanted = wanted_of([order], 0, with_previous=with_previous)
    walk = shortest_walk(wanted, with_previous=with_previous)
    assert walk is not None
    assert wanted <= wanted_of([[Task(kind, 0) for kind in walk]], 0, with_previous=with_previous)
    assert len(walk) == length
    assert walk.count("FORWARD") == walk.count("FULL_BACKWARD") + walk.count("BACKWARD_INPUT")


def test_a_stage_of_which_all_is_known_still_takes_a_step() -> None:
    """FSDP reduces gradients once a backward pass has added up what a weight task left."""
    wanted = wanted_of([[U, F, F, INPUT, F, INPUT, WEIGHT, INPUT, WEIGHT, WEIGHT, G, R]], 0, with_previous=False)
    known = {situation_of(context) for context in wanted}
    walk = shortest_walk(wanted, with_previous=False, known=known)
    assert walk is not None
    passes = ["FORWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT"]
    assert Counter(walk) == Counter(["UNSHARD", *2 * passes, "REDUCE_GRAD", "RESHARD"])


def test_different_first_gradients_cannot_be_in_one_walk() -> None:
    orders = [[U, F, B, G, R], [U, F, INPUT, WEIGHT, G, R]]
    assert shortest_walk(wanted_of(orders, 0, with_previous=False), with_previous=False) is None


def test_a_step_is_replayed_task_by_task() -> None:
    """Two passes in flight at most in the excerpt, five in the schedule."""

    def action(
        label: str, peak: int, change: int, task: Task | None = None, purpose: Purpose = Purpose.ACTIVATIONS
    ) -> Action:
        return Action(label, Counter({Purpose.WORKING: peak}), Counter({purpose: change}), Counter(), task)

    before = [action("before", 0, 100, purpose=Purpose.WEIGHTS), action("receive", 0, 20, purpose=Purpose.BUFFERS)]
    first_backward = Action(
        "backward",
        Counter({Purpose.WORKING: 9}),
        Counter({Purpose.ACTIVATIONS: -10, Purpose.UNREDUCED: 7}),
        Counter(),
        B,
    )
    tasks = [action("forward", 12, 10, F), action("forward", 12, 10, F), first_backward, action("backward", 9, -10, B)]
    actions = Actions(before, tasks, [action("update", 1, 0)], num_micro_batches=2)
    step = compose(actions, [F, F, F, F, B, F, F, B, B, B, B, B], 6, with_previous=False)
    # Weights, 6 x 10 of buffers, five passes of 10 in flight, 7 of gradients, 9 at work in the second backward pass.
    assert step.peak == 100 + 60 + 50 + 7 + 9
    assert step.moment == "backward"
    assert step.at_peak[Purpose.BUFFERS] == 60
    assert step.at_peak[Purpose.UNREDUCED] == 7
