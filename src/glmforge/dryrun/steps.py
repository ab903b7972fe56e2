"""A training step as a sequence of actions, and what a step of other micro-batches in another order needs.

A step is a sequence of actions: the tasks of a schedule (forward and backward passes of micro-batches, gathering and
reducing, sending and receiving), and what comes before and after. Seen from its beginning, each action has a highest
point and leaves the level changed: every forward pass leaves its activations behind, the first backward pass gradients
to be reduced. Levels add up. What a task does depends on the stage, on what earlier tasks of the stage have made that
it finds there (gathered weights, gradients of two kinds), and on the stage's task before, as far as that leaves weights
to be gathered; on nothing else. From one task of each such context the step of any number of micro-batches is composed,
in any order. That composed and observed steps agree is tested.

Does not import torch.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from glmforge.plan.memory.purposes import Memory, Purpose

Traffic = Counter[tuple[str, str]]
"""(axis, "calls" or "bytes") -> number."""


class Task(NamedTuple):
    """What a pipeline rank does with the `slot`-th of its stages; `kind` is torch's name of it, such as SEND_F."""

    kind: str
    slot: int


class Context(NamedTuple):
    """What the memory of a task depends on.

    `previous` is the kind of the stage's task before, where that matters (see `remembered`), of SEND_B that of the pass
    whose result is sent; `found` is what lies there of those things that the task uses and otherwise makes (see
    `found_by`).
    """

    task: Task
    previous: str
    found: frozenset[str]

    def on(self, like: Sequence[int]) -> "Context":
        """The same on the first stage that holds what this one does: `like[slot]`; empty where all differ."""
        return self._replace(task=Task(self.task.kind, like[self.task.slot])) if like else self


FORWARD, BACKWARD = Task("FORWARD", 0), Task("FULL_BACKWARD", 0)

_LABELS = {"FORWARD": "forward", "REDUCE_GRAD": "reduction", "UNSHARD": "gathering", "RESHARD": "gathering"}
TRANSFERS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")


def label_of(task: Task) -> str:
    """In which kind of action a task is, in words."""
    if task.kind in TRANSFERS:
        return "transfer"
    return _LABELS.get(task.kind, "backward")


def remembered(kind: str, *, with_previous: bool) -> str:
    """What the stage's next task feels of a task of this kind: weights sent for by UNSHARD arrive in the next pass, and
    after REDUCE_GRAD no weights are left to give up."""
    return kind if with_previous or kind in ("UNSHARD", "REDUCE_GRAD") else ""


_SINGLE, SUMMED = "gradients of their own type", "fp32 gradients"
_GRADIENTS = frozenset((_SINGLE, SUMMED))


def found_by(kind: str, there: frozenset[str]) -> frozenset[str]:
    """What of the things made by earlier tasks matters to one of this kind."""
    gradients = there & _GRADIENTS
    if kind == "BACKWARD_INPUT":  # it only adds up what it finds
        return gradients if _SINGLE in gradients else frozenset()
    if kind == "BACKWARD_WEIGHT":  # adds to gradients of their own type; routers have no other
        return frozenset((_SINGLE,)) if _SINGLE in gradients else gradients
    return gradients if kind in ("FULL_BACKWARD", "REDUCE_GRAD") else there & {kind}


def left_by(kind: str, there: frozenset[str]) -> frozenset[str]:
    """What is there after a task of this kind.

    The first forward pass and the first gathering make what later ones use. A weight task leaves gradients of the
    weights' own type; FSDP adds them to fp32 sums when a backward pass next goes through the layers.
    """
    if kind in ("FORWARD", "UNSHARD"):
        return there | {kind}
    if kind == "BACKWARD_WEIGHT":
        return there | {_SINGLE}
    if kind == "FULL_BACKWARD" or (kind == "BACKWARD_INPUT" and _SINGLE in there):
        return (there - {_SINGLE}) | {SUMMED}
    return there - _GRADIENTS if kind == "REDUCE_GRAD" else there


def contexts(order: Sequence[Task], *, with_previous: bool) -> Iterator[Context]:
    """The context of each task. `with_previous`: a stage's weights are not always gathered between its tasks."""
    last: dict[int, str] = {}
    there: dict[int, frozenset[str]] = {}
    differentiated: dict[int, deque[str]] = defaultdict(deque)
    for task in order:
        kind, slot = task
        if kind in TRANSFERS:
            yield Context(task, differentiated[slot].popleft() if kind == "SEND_B" else "", frozenset())
            continue
        if kind in ("FULL_BACKWARD", "BACKWARD_INPUT"):
            differentiated[slot].append(kind)
        here = there.get(slot, frozenset())
        yield Context(task, last.get(slot, ""), found_by(kind, here))
        last[slot], there[slot] = remembered(kind, with_previous=with_previous), left_by(kind, here)


@dataclass(frozen=True)
class Action:
    """A part of a step: `at_peak` and `change` are bytes above what there was when it began."""

    label: str
    at_peak: Memory
    change: Memory
    traffic: Traffic
    task: Task | None = None


@dataclass
class Actions:
    """An observed step of `num_micro_batches` taken apart. `before` begins with nothing allocated.

    Batches and receive buffers are made for all micro-batches beforehand; `share`, the action between the two, makes
    what a step needs once.
    """

    before: list[Action]
    tasks: list[Action]
    after: list[Action]
    num_micro_batches: int

    def by_context(self, *, with_previous: bool, like: Sequence[int] = ()) -> dict[Context, Action]:
        """One action for each context, the last one of several; `like` as in `compose`."""
        order = [action.task for action in self.tasks if action.task is not None]
        found = contexts(order, with_previous=with_previous)
        return dict(zip((context.on(like) for context in found), self.tasks, strict=True))


@dataclass(frozen=True)
class StepResources:
    """A whole step: memory at its highest point, in which kind of action that is, and what went over the network."""

    at_peak: Memory
    moment: str
    traffic: Traffic

    @property
    def peak(self) -> int:
        return self.at_peak.total()


class ShardClass(NamedTuple):
    """Ranks of a stage whose shards are equally large: the first, how many, and the parameters that each holds."""

    first_rank: int
    num_ranks: int
    parameters: int


@dataclass(frozen=True)
class RankFindings:
    """What the dry run of a rank found, for all ranks with the same content.

    Attributes:
        held: bytes of weights, gradients and optimizer state, as allocated.
        shard_classes: the ranks of its stage by the size of their shards, the largest first.
        steps: the step at each place in the pipeline that was requested.
    """

    held: dict[Purpose, int]
    shard_classes: list[ShardClass]
    steps: dict[int, StepResources]


def replay(actions: Sequence[Action]) -> StepResources:
    """The step that these actions are, one after the other."""
    level: Memory = Counter()
    total, best, best_total, moment = 0, level, 0, ""
    traffic: Traffic = Counter()
    for action in actions:
        if total + action.at_peak.total() > best_total:
            best, moment = _plus(level, action.at_peak), action.label
            best_total = best.total()
        level.update(action.change)
        total += action.change.total()
        traffic.update(action.traffic)
    return StepResources(best, moment, traffic)


def compose(
    actions: Actions,
    order: Sequence[Task],
    num_micro_batches: int,
    *,
    with_previous: bool,
    receives: bool = False,
    like: Sequence[int] = (),
) -> StepResources:
    """The step whose tasks are `order`, of `num_micro_batches`.

    `receives`: what is received belongs to no task, so the traffic between stages is counted per micro-batch. `like`
    gives each slot the first one that holds the same, whose tasks tell of both; empty if all differ.
    """
    known: Mapping[Context, Action] = actions.by_context(with_previous=with_previous, like=like)
    tasks = [known[context.on(like)] for context in contexts(order, with_previous=with_previous)]
    step = replay([*_before(actions, num_micro_batches), *tasks, *actions.after])
    if receives:
        for key in [key for key in step.traffic if key[0] == "pp"]:
            total = sum(action.traffic[key] for action in (*actions.before, *actions.tasks, *actions.after))
            step.traffic[key] = total * num_micro_batches // actions.num_micro_batches
    return step


def prolong(actions: Actions, num_micro_batches: int) -> StepResources:
    """The step of a rank that takes one micro-batch after the other, each forward and backward."""
    pairs = list(zip(actions.tasks[::2], actions.tasks[1::2], strict=True))
    more = num_micro_batches - len(pairs)
    if more > 0:
        assert len(pairs) > 1, "the first backward pass alone makes gradients"
        forward, backward = pairs[len(pairs) // 2]
        if len(pairs) == 2:
            # Sums over all ranks follow the last backward pass; nothing else tells it from the first.
            backward = replace(backward, traffic=pairs[0][1].traffic)
        pairs = [*pairs[:-1], *[(forward, backward)] * more, pairs[-1]]
    before = _before(actions, num_micro_batches)
    return replay([*before, *(action for pair in pairs for action in pair), *actions.after])


def _before(actions: Actions, number: int) -> Iterator[Action]:
    """What comes before the tasks of `number` micro-batches."""
    for action in actions.before:
        buffers = action.change[Purpose.BUFFERS]
        if action.label == "share" or not buffers:
            yield action
            continue
        more: Memory = Counter({Purpose.BUFFERS: buffers * number // actions.num_micro_batches - buffers})
        yield replace(action, at_peak=_plus(action.at_peak, more), change=_plus(action.change, more))


def _plus(a: Memory, b: Memory) -> Memory:
    """Unlike Counter's own sum, keeps what is zero or negative."""
    total = a.copy()
    total.update(b)
    return total
