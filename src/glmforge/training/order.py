"""The order in which hooks are called: declared by each hook, worked out here.

A hook has a priority, and names the hooks of its own or an earlier priority that must be called before it. Hooks
that declare neither keep the order they are given in.
"""

from collections.abc import Sequence
from enum import IntEnum, auto
from graphlib import CycleError, TopologicalSorter
from typing import Protocol, TypeVar

from glmforge.errors import GlmforgeError


class HookOrderError(GlmforgeError):
    """There is no order in which every hook comes after those it names."""


class Priority(IntEnum):
    """When a hook is called, compared with the others."""

    GUARD = auto()
    """May end the process: the others do nothing more then."""
    MEASURE = auto()
    """Measures time: before the others, so that their work is not measured."""
    COMMAND = auto()
    """Takes commands for the run."""
    COLLECT = auto()
    """Records what a step was like."""
    WRITE = auto()
    """Writes what was recorded."""
    JUDGE = auto()
    """May have the run go back: what the step was is written by then."""
    EVALUATE = auto()
    """Uses the model as the step left it."""
    USER = auto()
    """The default."""
    SAVE = auto()
    """Saves the others' states: after all of them, so that these are of this step."""


class Ordered(Protocol):
    """What a hook declares."""

    @property
    def name(self) -> str: ...
    @property
    def priority(self) -> Priority: ...
    @property
    def after(self) -> Sequence[str]: ...


HookT = TypeVar("HookT", bound=Ordered)


def in_order(hooks: Sequence[HookT]) -> list[HookT]:
    """`hooks` by priority, each after those it names; otherwise as given.

    Raises:
        HookOrderError: a hook names one that is not there, or that cannot come before it.
    """
    priorities = {hook.name: hook.priority for hook in hooks}
    ordered: list[HookT] = []
    for priority in Priority:
        ordered += _of_priority([hook for hook in hooks if hook.priority == priority], priorities)
    return ordered


def _of_priority(hooks: Sequence[HookT], priorities: dict[str, Priority]) -> list[HookT]:
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for index, hook in enumerate(hooks):
        for name in hook.after:
            _check(hook, name, priorities)
        sorter.add(index, *(i for i, other in enumerate(hooks) if other.name in hook.after))
    try:
        sorter.prepare()
    except CycleError as error:
        names = " -> ".join(f"'{hooks[index].name}'" for index in error.args[1])
        raise HookOrderError(f"hooks form a cycle ({names}); change `after`") from error
    order: list[HookT] = []
    waiting: list[int] = []
    while sorter.is_active():
        waiting = sorted([*waiting, *sorter.get_ready()])
        first = waiting.pop(0)
        order.append(hooks[first])
        sorter.done(first)
    return order


def _check(hook: Ordered, name: str, priorities: dict[str, Priority]) -> None:
    if name not in priorities:
        there = ", ".join(f"'{known}'" for known in priorities if known != hook.name)
        raise HookOrderError(
            f"hook '{hook.name}' comes after '{name}', which this run does not have; available: {there}"
        )
    if priorities[name] > hook.priority:
        raise HookOrderError(
            f"hook '{hook.name}' comes after '{name}', but its priority {hook.priority.name} is before "
            f"{priorities[name].name}: change `priority` or `after`"
        )
