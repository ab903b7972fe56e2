"""From what was observed of a step to its actions: which storages were for what, and where one pass ends.

Purposes follow from lives. Weights, gradients and optimizer state are known by name, gathered weights by being
resized. Of the others, what is made before the first forward pass and lives on are buffers, what a forward pass leaves
behind are activations, what a backward pass leaves behind are gradients still to be reduced, and the rest is working
memory.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from glmforge.parallel.communication import Collective
from glmforge.recipes.dry_run.observe import Mark, Observation
from glmforge.recipes.dry_run.steps import Action, Actions, Memory, Purpose, Traffic
from glmforge.recipes.dry_run.tracker import Block


def take_apart(seen: Observation) -> Actions:
    """Name the purpose of every storage, and cut the step into actions."""
    _name_purposes(seen)
    cuts = _cuts(seen.marks)
    spans = [("before", Mark("start", 0, 0), cuts[0])]
    spans += [(start.label, start, stop) for start, stop in pairwise(cuts)]
    actions = [_action(seen, *span) for span in spans]
    passes = [action for action in actions if action.label in ("forward", "backward")]
    return Actions(actions[0], passes, actions[1 + len(passes) :])


def in_order(seen: Observation) -> list[Action]:
    """The actions of a step as it was observed."""
    _name_purposes(seen)
    cuts = [Mark("before", 0, 0), *_cuts(seen.marks)]
    return [_action(seen, start.label, start, stop) for start, stop in pairwise(cuts)]


def _cuts(marks: Sequence[Mark]) -> list[Mark]:
    """Where one action ends and the next begins; in a pipeline gradients are reduced after the last backward pass."""
    cuts = [mark for mark in marks if mark.label in ("forward", "backward", "update", "end")]
    done = [mark for mark in marks if mark.label == "backward done"]
    if done:
        cuts.insert(-2, Mark("reduction", done[-1].log, done[-1].calls))
    return cuts


def _action(seen: Observation, label: str, start: Mark, stop: Mark) -> Action:
    level: Memory = Counter()
    total = highest = 0
    peak_at = start.log
    for position in range(start.log, stop.log):
        total += seen.log[position][1]
        if total > highest:
            highest, peak_at = total, position + 1
    at_peak: Memory = Counter()
    for position, (block, change) in enumerate(seen.log[start.log : stop.log], start.log):
        if position == peak_at:
            at_peak = level.copy()
        level[block.purpose] += change
    if peak_at == stop.log and highest:
        at_peak = level.copy()
    return Action(label, at_peak, level, _traffic(seen.calls[start.calls : stop.calls]))


def _traffic(calls: Iterable[Collective]) -> Traffic:
    traffic: Traffic = Counter()
    for call in calls:
        traffic[call.axis, "calls"] += 1
        traffic[call.axis, "bytes"] += call.bytes
    return traffic


def _name_purposes(seen: Observation) -> None:
    born: dict[Block, int] = {}
    died: dict[Block, int] = {}
    level: Counter[Block] = Counter()
    for position, (block, change) in enumerate(seen.log):
        born.setdefault(block, position)
        level[block] += change
        if level[block] == 0:
            died[block] = position
        else:
            died.pop(block, None)
    marks = [mark for mark in seen.marks if mark.label != "update"]
    starts = [mark.log for mark in marks]
    keeps = _last(marks, "backward done").log if any(m.label == "backward done" for m in marks) else None
    for block, birth in born.items():
        if block.purpose is not Purpose.WORKING:
            continue
        index = bisect_right(starts, birth) - 1
        if index < 0:
            continue
        death = died.get(block, len(seen.log))
        label, following = marks[index].label, starts[index + 1] if index + 1 < len(starts) else len(seen.log)
        if label in ("prepare", "forward") and death >= following:
            block.purpose = Purpose.BUFFERS if label == "prepare" else Purpose.ACTIVATIONS
        elif label.startswith("backward"):
            done = keeps if keeps is not None else _next(marks, "forward done", index, len(seen.log))
            if birth < done < death:
                block.purpose = Purpose.UNREDUCED


def _last(marks: Sequence[Mark], label: str) -> Mark:
    return next(mark for mark in reversed(marks) if mark.label == label)


def _next(marks: Sequence[Mark], label: str, index: int, otherwise: int) -> int:
    return next((mark.log for mark in marks[index:] if mark.label == label), otherwise)
