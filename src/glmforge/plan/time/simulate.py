"""When each pipeline rank runs which pass: a schedule's order carried out with the seconds that passes take.

A rank runs its passes one after the other, each as soon as what it needs has come: a forward pass the activations of
the stage before, a backward pass the gradients of the stage after, both a message later where that stage is on another
rank. Messages are sent while the next pass runs, as torch sends them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from glmforge.plan.time.schedules import Order, Pass

_NOT_YET = math.inf

PassSeconds = Mapping[tuple[Pass, int], float]
"""(kind of pass, stage) -> seconds."""


class Span(NamedTuple):
    """What a pipeline rank did, in seconds since the step began. `task` is a kind of pass, or "reduce" or a part
    that follows the passes, such as "update"."""

    pp_rank: int
    task: str
    stage: int
    micro_batch: int
    start: float
    stop: float


def simulate(
    orders: Sequence[Order], seconds: PassSeconds, message: float, starts: Sequence[float]
) -> list[list[tuple[float, float]]]:
    """Start and stop of every task of every rank. `message`: seconds from one rank to the next; `starts`: when each
    rank can begin."""
    rank_of = {stage: rank for rank, order in enumerate(orders) for stage in {task.stage for task in order}}
    num_stages, last, num = len(rank_of), len(rank_of) - 1, 1 + max(task.micro_batch for task in orders[0])
    late = [message * (rank_of[stage] != rank_of[stage + 1]) for stage in range(last)]
    # When the passes that others wait for were done: forward ones by the next stage, backward ones by the one before.
    forward, backward = ([[_NOT_YET] * num for _ in range(num_stages)] for _ in range(2))
    clocks, times = list(starts), [list[tuple[float, float]]() for _ in orders]
    waiting, progress = list(range(len(orders))), True
    while waiting:
        assert progress, "passes of a schedule never deadlock"
        progress = False
        for rank in waiting:
            order, mine, clock = orders[rank], times[rank], clocks[rank]
            for position in range(len(mine), len(order)):
                kind, stage, micro_batch = order[position]
                begin = ready = clock
                if kind == "forward":
                    if stage > 0:
                        ready = forward[stage - 1][micro_batch] + late[stage - 1]
                elif kind != "weight" and stage < last:
                    ready = backward[stage + 1][micro_batch] + late[stage]
                if ready > clock:
                    if ready == _NOT_YET:
                        break
                    begin = ready
                clock = begin + seconds[kind, stage]
                if kind == "forward":
                    forward[stage][micro_batch] = clock
                elif kind != "weight":
                    backward[stage][micro_batch] = clock
                mine.append((begin, clock))
                progress = True
            clocks[rank] = clock
        waiting = [rank for rank in waiting if len(times[rank]) < len(orders[rank])]
    return times


def spans(orders: Sequence[Order], times: Sequence[Sequence[tuple[float, float]]]) -> list[Span]:
    """The same as a list, rank by rank."""
    return [
        Span(rank, task.kind, task.stage, task.micro_batch, start, stop)
        for rank, order in enumerate(orders)
        for task, (start, stop) in zip(order, times[rank], strict=True)
    ]
