"""From what was observed of a step to its actions: which storages were for what, and where one pass ends.

Purposes follow from lives. Weights, gradients and optimizer state are known by name, gathered weights by being
resized. Of the others, what is made before the first pass and lives on are buffers, what a forward pass leaves behind
are activations, what a backward pass leaves behind are gradients still to be reduced, and the rest is working
memory.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from glmforge.dryrun.observe import Mark, Observation
from glmforge.dryrun.steps import Action, Actions, Task, Traffic
from glmforge.dryrun.tracker import Storage
from glmforge.parallel.communication import Collective
from glmforge.plan.memory.purposes import Memory, Purpose

_CUTS = ("share", "receive", "reduction", "update", "end")
"""Labels of marks at which an action begins that is no task."""


def take_apart(seen: Observation, num_micro_batches: int) -> Actions:
    """Name the purpose of every storage, and cut the step of this many micro-batches into actions."""
    actions = in_order(seen)
    first = next(index for index, action in enumerate(actions) if action.task is not None)
    tasks = [action for action in actions if action.task is not None]
    return Actions(actions[:first], tasks, actions[first + len(tasks) :], num_micro_batches)


def in_order(seen: Observation) -> list[Action]:
    """Name the purpose of every storage, and cut the step into its actions as it was observed."""
    _name_purposes(seen)
    cuts = [Mark("before", 0, 0), *_cuts(seen.marks)]
    return [_action(seen, start, stop) for start, stop in pairwise(cuts)]


def _cuts(marks: Sequence[Mark]) -> list[Mark]:
    """Where one action ends and the next begins; in a pipeline gradients are reduced after the last backward pass."""
    cuts = [mark for mark in marks if mark.task is not None or mark.label in _CUTS]
    done = [mark for mark in marks if mark.label == "backward done"]
    if done:
        cuts.insert(-2, Mark("reduction", done[-1].log, done[-1].calls))
    return cuts


def _action(seen: Observation, start: Mark, stop: Mark) -> Action:
    level: Memory = Counter()
    total = highest = 0
    peak_at = start.log
    for position in range(start.log, stop.log):
        total += seen.log[position][1]
        if total > highest:
            highest, peak_at = total, position + 1
    at_peak: Memory = Counter()
    for position, (storage, change) in enumerate(seen.log[start.log : stop.log], start.log):
        if position == peak_at:
            at_peak = level.copy()
        level[storage.purpose] += change
    if peak_at == stop.log and highest:
        at_peak = level.copy()
    return Action(start.label, at_peak, level, _traffic(seen.calls[start.calls : stop.calls]), start.task)


def _traffic(calls: Iterable[Collective]) -> Traffic:
    traffic: Traffic = Counter()
    for call in calls:
        traffic[call.axis, "calls"] += 1
        traffic[call.axis, "bytes"] += call.bytes
    return traffic


def _name_purposes(seen: Observation) -> None:
    born: dict[Storage, int] = {}
    died: dict[Storage, int] = {}
    level: Counter[Storage] = Counter()
    for position, (storage, change) in enumerate(seen.log):
        born.setdefault(storage, position)
        level[storage] += change
        if level[storage] == 0:
            died[storage] = position
        else:
            died.pop(storage, None)
    marks = [mark for mark in seen.marks if mark.label != "update"]
    starts = [mark.log for mark in marks]
    for storage, birth in born.items():
        if storage.purpose is not Purpose.WORKING:
            continue
        index = bisect_right(starts, birth) - 1
        if index < 0:
            continue
        death = died.get(storage, len(seen.log))
        label, following = marks[index].label, starts[index + 1] if index + 1 < len(starts) else len(seen.log)
        if label in ("prepare", "share", "receive", "forward") and death >= following:
            storage.purpose = Purpose.ACTIVATIONS if label == "forward" else Purpose.BUFFERS
        elif label.startswith("backward"):
            done = _backward_done(marks, index, len(seen.log))
            if birth < done < death:
                storage.purpose = Purpose.UNREDUCED


def _backward_done(marks: Sequence[Mark], index: int, end: int) -> int:
    """Where in the log what a backward pass leaves behind can only be gradients: after the last backward pass of the
    stage, or, without a pipeline, after the next forward pass."""
    task = marks[index].task
    if task is not None and Task("REDUCE_GRAD", task.slot) in (mark.task for mark in marks):
        return next(mark.log for mark in marks if mark.task == Task("REDUCE_GRAD", task.slot))
    done = [mark.log for mark in marks if mark.label == "backward done"]
    return done[-1] if done else next((mark.log for mark in marks[index:] if mark.label == "forward done"), end)
