"""The shortest sequence of tasks of one pipeline stage that shows everything which a long schedule asks for.

A schedule of hundreds of micro-batches repeats few situations (see `glmforge.dryrun.steps`). Which ones is
read from the schedule itself, of every place that is to be composed; a best-first search then finds a sequence in
which each occurs, and which a stage can run: no pass without gathered weights, no backward before its forward pass.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from glmforge.dryrun.steps import SUMMED, TRANSFERS, Context, Task, contexts, found_by, left_by, remembered

_MOST_OPEN = 3
"""Micro-batches in flight. More add nothing: a situation has at most two tasks."""

Situation = tuple[str, str, frozenset[str]]
"""Kind of the task before, kind of the task, and what it finds; see `Context`."""


@dataclass(frozen=True)
class _State:
    """How far a sequence has come: what it left open, what is there, and which situations are missing.

    `is_used`: a pass used the gathered weights. `is_reduced`: gradients were reduced, which ends it; it must be where
    there is a task for it.
    """

    missing: frozenset[Situation]
    has_to_reduce: bool = False
    there: frozenset[str] = frozenset()
    last: str = ""
    open_forwards: int = 0
    open_inputs: int = 0
    is_gathered: bool = False
    is_used: bool = False
    is_reduced: bool = False

    @property
    def is_over(self) -> bool:
        is_open = self.open_forwards or self.open_inputs or self.is_gathered
        return not self.missing and not is_open and (self.is_reduced or not self.has_to_reduce)


def shortest_walk(
    wanted: Iterable[Context], *, with_previous: bool, known: Collection[Situation] = ()
) -> list[str] | None:
    """The kinds of tasks, in order, of a sequence of one stage that has all contexts which are `wanted` of it.

    Those that are `known` may be omitted. None if there is no such sequence, as where different tasks are wanted as
    the first ones that make gradients.
    """
    situations = frozenset(situation_of(context) for context in wanted)
    return _shortest(situations - frozenset(known), frozenset(kind for _, kind, _ in situations), with_previous)


def situation_of(context: Context) -> Situation:
    return context.previous, context.task.kind, context.found


@cache
def _shortest(missing: frozenset[Situation], kinds: frozenset[str], with_previous: bool) -> list[str] | None:
    if _exclude_each_other(missing):
        return None
    start = _State(missing, has_to_reduce="REDUCE_GRAD" in kinds)
    came_from: dict[_State, tuple[_State, str] | None] = {start: None}
    queue = [(_least_left(start), 0, 0, start)]
    while queue:
        _, _, length, state = heapq.heappop(queue)
        if state.is_over:
            return list(_path(state, came_from))[::-1]
        for kind in sorted(kinds):
            after = _after(state, kind, with_previous=with_previous)
            if after is not None and after not in came_from:
                came_from[after] = state, kind
                heapq.heappush(queue, (length + 1 + _HURRY * _least_left(after), len(came_from), length + 1, after))
    return None


def _exclude_each_other(situations: frozenset[Situation]) -> bool:
    """Whether two of them can each be in a sequence, but not both: gradients are made and reduced once."""
    once = [
        "first" if not found and kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT") else kind
        for _, kind, found in situations
        if kind == "REDUCE_GRAD" or not found
    ]
    return once.count("first") > 1 or once.count("REDUCE_GRAD") > 1


_HURRY = 2
"""More than 1 finds a walk sooner that may be a few tasks longer than the shortest."""


def _least_left(state: "_State") -> int:
    """Tasks that are needed at least: one for each situation, or to close what is open."""
    return max(len(state.missing), state.open_forwards + state.open_inputs)


def _path(state: _State, came_from: dict[_State, tuple[_State, str] | None]) -> Iterator[str]:
    while (step := came_from[state]) is not None:
        state, kind = step
        yield kind


def _after(state: _State, kind: str, *, with_previous: bool) -> _State | None:
    """The state after a task of this kind, None where it is not possible."""
    situation = (state.last, kind, found_by(kind, state.there))
    missing, forwards, inputs = state.missing - {situation}, state.open_forwards, state.open_inputs
    last = remembered(kind, with_previous=with_previous)
    following = replace(state, missing=missing, there=left_by(kind, state.there), last=last)
    is_reduced = state.is_reduced
    if kind == "UNSHARD":
        return None if state.is_gathered or is_reduced else replace(following, is_gathered=True, is_used=False)
    if not state.is_gathered:
        return None
    if kind == "RESHARD":  # not without a pass: only from one does torch learn that the weights are there
        return replace(following, is_gathered=False) if state.is_used else None
    if kind == "REDUCE_GRAD":
        is_done = state.is_used and not forwards and not inputs
        # FSDP reduces gradients of one type: after a single weight task it refuses, having added up some of them.
        can_be = not is_reduced and is_done and SUMMED in state.there
        return replace(following, is_reduced=True) if can_be else None
    following = replace(following, is_used=True)
    if kind == "FORWARD":
        return None if is_reduced or forwards == _MOST_OPEN else replace(following, open_forwards=forwards + 1)
    if kind == "BACKWARD_WEIGHT":
        return replace(following, open_inputs=inputs - 1) if inputs else None
    if not forwards or (kind == "BACKWARD_INPUT" and inputs == _MOST_OPEN):
        return None
    left = inputs + 1 if kind == "BACKWARD_INPUT" else inputs
    return replace(following, open_forwards=forwards - 1, open_inputs=left)


def wanted_of(orders: Iterable[list[Task]], slot: int, *, with_previous: bool) -> set[Context]:
    """The contexts in which these orders have tasks of a stage, sending and receiving omitted."""
    return {
        context
        for order in orders
        for context in contexts(order, with_previous=with_previous)
        if context.task.slot == slot and context.task.kind not in TRANSFERS
    }
