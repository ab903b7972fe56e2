"""When each pipeline rank runs which pass: a schedule's order carried out with the seconds that passes take.

A rank runs its passes one after the other, each as soon as what it needs has come: a forward pass the activations of
the stage before, a backward pass the gradients of the stage after, both a message later where that stage is on another
rank. Messages are sent while the next pass runs, as torch sends them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from glmforge.plan.time.schedules import Order, Pass

PassSeconds = Mapping[tuple[Pass, int], float]
"""(kind of pass, stage) -> seconds."""


class Span(NamedTuple):
    """What a pipeline rank did, in seconds since the step began. `task` is a kind of pass, or "reduce", "update"."""

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
    rank_of = {task.stage: rank for rank, order in enumerate(orders) for task in order}
    last = max(rank_of)
    late = {(one, other): message * (rank_of[one] != rank_of[other]) for one in rank_of for other in rank_of}
    done: dict[tuple[bool, int, int], float] = {}
    """(whether forward, stage, micro-batch) -> when."""
    clocks, times = list(starts), [list[tuple[float, float]]() for _ in orders]
    waiting = list(range(len(orders)))
    while waiting:
        before = len(done)
        for rank in waiting:
            order, mine, clock = orders[rank], times[rank], clocks[rank]
            for kind, stage, micro_batch in order[len(mine) :]:
                is_forward = kind == "forward"
                begin = clock
                if kind != "weight":
                    neighbour = stage - 1 if is_forward else stage + 1
                    if 0 <= neighbour <= last:
                        ready = done.get((is_forward, neighbour, micro_batch))
                        if ready is None:
                            break
                        begin = max(clock, ready + late[stage, neighbour])
                clock = begin + seconds[kind, stage]
                if kind != "weight":
                    done[is_forward, stage, micro_batch] = clock
                mine.append((begin, clock))
            clocks[rank] = clock
        waiting = [rank for rank in waiting if len(times[rank]) < len(orders[rank])]
        assert not waiting or len(done) > before, "a schedule's passes never wait for each other in a circle"
    return times


def spans(orders: Sequence[Order], times: Sequence[Sequence[tuple[float, float]]]) -> list[Span]:
    """The same as a list, rank by rank."""
    return [
        Span(rank, task.kind, task.stage, task.micro_batch, start, stop)
        for rank, order in enumerate(orders)
        for task, (start, stop) in zip(order, times[rank], strict=True)
    ]
