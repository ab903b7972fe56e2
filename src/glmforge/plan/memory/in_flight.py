"""How many micro-batches a pipeline rank keeps the activations of, by schedule.

A schedule lets a rank begin some forward passes before its first backward pass, and from then on keeps the number. The
counts follow from torch's schedules; those of several stages per rank depend on which of the rank's stages the passes
belong to, so what is given are the fullest moments, each as the number of passes in flight for each stage of the rank.
"""

from collections.abc import Iterable
from functools import lru_cache

from glmforge.config.pipeline import V_SCHEDULES

InFlight = tuple[int, ...]
"""Forward passes of each stage of a rank whose activations are kept."""

_MOST_ROUNDS = 3
"""Rounds of an interleaved schedule after which nothing new happens."""


@lru_cache(maxsize=4096)
def passes_in_flight(
    schedule: str, pp: int, pp_rank: int, per_rank: int, num_micro_batches: int
) -> tuple[InFlight, ...]:
    """The fullest moments of a rank's step, none of them below another in all its numbers."""
    number = num_micro_batches
    if pp == 1:
        return ((1,),)
    if schedule == "gpipe":
        return ((number,),)
    if schedule == "1f1b":
        return ((min(pp - pp_rank, number),),)
    if schedule == "looped_bfs":
        return ((number,) * per_rank,)
    if schedule in V_SCHEDULES:
        return _of_a_v(schedule, pp, pp_rank, number)
    return _interleaved(schedule, pp, pp_rank, per_rank, number)


def _of_a_v(schedule: str, pp: int, pp_rank: int, number: int) -> tuple[InFlight, ...]:
    """Warm-up: 2 (pp - rank) - 1 passes of the first stage, then `rank` of both, then one more of the second."""
    extra = 1 if schedule == "dualpipev" else 0
    moments = [(2 * pp - pp_rank - 1 + extra, pp_rank + 1), (2 * pp - pp_rank, pp_rank + extra)]
    return _fullest((min(first, number), min(second, number)) for first, second in moments)


def _interleaved(schedule: str, pp: int, pp_rank: int, per_rank: int, number: int) -> tuple[InFlight, ...]:
    """Forward passes go through the rank's stages in rounds of micro-batches, backward passes the other way round."""
    rounds = max(1, number // pp)
    size = number // rounds
    total = per_rank * size * min(rounds, _MOST_ROUNDS)
    per_step = 1 if schedule == "interleaved_zero_bubble" else 2
    warm_up = min((per_rank - 1) * size + per_step * (pp - 1 - pp_rank), total)
    # The split backward pass leaves the gradients of the weights, and what they need, for `pp_rank` passes later.
    delay = pp_rank if per_step == 1 else 0
    level = [0] * per_rank
    moments: set[InFlight] = set()
    for step in range(total + warm_up):
        if step < total:
            level[step // size % per_rank] += 1
        moments.add(tuple(level))
        if step - warm_up >= delay:
            level[per_rank - 1 - (step - warm_up - delay) // size % per_rank] -= 1
    return _fullest(moments)


def _fullest(moments: Iterable[InFlight]) -> tuple[InFlight, ...]:
    found = sorted(set(moments), reverse=True)
    return tuple(one for one in found if not any(other != one and all(map(int.__ge__, other, one)) for other in found))
