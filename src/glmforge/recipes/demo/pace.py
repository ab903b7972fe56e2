"""How many steps fit into the time, and what to do when the machine turns out slower or faster.

The plan is made from measured steps and made again whenever the run has stopped. That is honest only with a learning
rate that does not depend on the total until the total is sure: the demo's schedule is `wsd`, constant for its first
part. The demo kills its run before the decay begins, so the new plan neither bends the curve that was followed nor
leaves the decay unfinished. A machine that turns slow after that gets a shorter plan still: the run is asked to stop,
and goes on with fewer steps; the learning rate then falls faster, and never rises again.
"""

import statistics
from collections.abc import Sequence
from itertools import pairwise

MIN_STEPS = 12
"""Enough for a checkpoint, a kill and a resume; they teach nothing."""
USEFUL_STEPS = 100
"""Below it the model has hardly learned which tokens are frequent."""
MTP_SHARE = 0.1
"""Of the pre-training's steps: the last ones, which train the MTP layer, too, and take longer."""
SHARE_OF_STEPS = 0.9
"""Of the pre-training's time; evaluations, checkpoints and two starts take the rest."""
FINE_TUNING_SHARE = 0.25
"""Of the training time."""
STARTS_OF_FINE_TUNING = 3
"""Its start, its evaluation and compiling the kernels of generation take about as long as this many starts."""
KILL_AT_SHARE = 0.4
KILL_AFTER_CHECKPOINT = 5
"""Steps that are lost by the kill: enough to see, not enough to miss."""
CHECKPOINTS_PER_RUN = 12
EVALUATIONS_PER_RUN = 2
AFTER_PER_BEFORE = 1.0
"""Export, comparison, speaking and report take no longer than corpus, tokenizer and shards, here as there."""
MOST_FOR_THE_REST = 0.4
TOLERATED_DELAY = 1.2
"""A run that would take this many times its time is planned anew."""
MIN_TIMED_STEPS = 8


def training_seconds(total: float, before: float, elapsed: float) -> float:
    """What is left of `total` seconds without `elapsed` and what follows; the stages `before` tell how long that is."""
    after = min(before * AFTER_PER_BEFORE, total * MOST_FOR_THE_REST)
    return max(0.0, total - elapsed - after)


def steps_within(seconds: float, step_seconds: float) -> int:
    """Steps that fit; at least `MIN_STEPS`."""
    return max(MIN_STEPS, int(seconds / step_seconds))


def next_plan(done: int, seconds: float, step_seconds: float, mtp_cost: float) -> int:
    """The steps of a run that has taken `done` of them, none of which trained MTP, and has `seconds` left.

    `step_seconds` are of the clock, with all that comes between steps; one that trains MTP takes `mtp_cost` times that.
    """
    fit = seconds / step_seconds
    total = (done + fit) / mean_cost(mtp_cost)
    if done > total * (1 - MTP_SHARE):  # all that is left trains MTP
        total = done + fit / mtp_cost
    return max(done + 2, int(total))


def mean_cost(mtp_cost: float) -> float:
    """Of a run's steps, where one without MTP costs 1."""
    return 1 - MTP_SHARE + MTP_SHARE * mtp_cost


def steps_of_phases(num_steps: int, done: int = 0) -> tuple[int, int]:
    """Steps without MTP and with it, at least one of each; those `done`, fewer than `num_steps`, had none."""
    without = max(done, 1, min(round(num_steps * (1 - MTP_SHARE)), num_steps - 1))
    return without, num_steps - without


def kill_step(num_steps: int, checkpoint_every: int) -> int:
    """Some steps after the last checkpoint of the run's first part."""
    checkpoint = max(1, int(num_steps * KILL_AT_SHARE) // checkpoint_every) * checkpoint_every
    return min(checkpoint + KILL_AFTER_CHECKPOINT, checkpoint + checkpoint_every)


def intervals(num_steps: int, num_evaluations: int = EVALUATIONS_PER_RUN) -> list[str]:
    """Overrides that space checkpoints and evaluations over a run."""
    return [
        f"checkpoint.every_steps={max(1, num_steps // CHECKPOINTS_PER_RUN)}",
        f"observe.evaluate_every={max(1, -(-num_steps // num_evaluations))}",
    ]


def seconds_per_step(clock: Sequence[float]) -> float | None:
    """From the times at which steps ended: the pace over the latter half, None while there are too few of them."""
    if len(clock) <= MIN_TIMED_STEPS:
        return None
    recent = clock[len(clock) // 2 :]
    return (recent[-1] - recent[0]) / (len(recent) - 1)


def is_late(step: int, num_steps: int, step_seconds: float, seconds_left: float) -> bool:
    """Whether the run will take much longer than it may, with enough left of it that a new plan helps."""
    due = (num_steps - step) * step_seconds
    return num_steps - step > MIN_TIMED_STEPS and due > max(0.0, seconds_left) * TOLERATED_DELAY + 10 * step_seconds


def median_interval(clock: Sequence[float]) -> float:
    """The usual seconds between two steps, for a run too short for a pace."""
    return statistics.median(b - a for a, b in pairwise(clock))
