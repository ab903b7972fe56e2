"""The order in which hooks are called: declared by each hook, worked out here.

A hook says in which stage it belongs, and names those hooks of its stage (or of an earlier one) that it relies on.
Hooks that declare nothing keep the order they are given in.
"""

from collections.abc import Sequence
from enum import IntEnum, auto
from graphlib import CycleError, TopologicalSorter
from typing import Protocol, TypeVar

from glmforge.errors import GlmforgeError


class HookOrderError(GlmforgeError):
    """Hooks that cannot be called in the order they ask for."""


class Stage(IntEnum):
    """When a hook is called, compared with the others."""

    GUARD = auto()
    """May end the process: the others do nothing more then."""
    MEASURE = auto()
    """Measures time: before the others, so that their work is not measured."""
    COMMAND = auto()
    """Takes what somebody asks of the run."""
    COLLECT = auto()
    """Records what a step was like."""
    WRITE = auto()
    """Writes what was recorded."""
    JUDGE = auto()
    """May have the run go back: what the step was is written by then."""
    EVALUATE = auto()
    """Uses the model as the step left it."""
    USER = auto()
    """Where a hook is that says nothing."""
    SAVE = auto()
    """Saves the others' states: after all of them, so that these are of this step."""


class Ordered(Protocol):
    """What a hook declares."""

    @property
    def name(self) -> str: ...
    @property
    def stage(self) -> Stage: ...
    @property
    def after(self) -> Sequence[str]: ...


HookT = TypeVar("HookT", bound=Ordered)


def in_order(hooks: Sequence[HookT]) -> list[HookT]:
    """`hooks` by stage, each after those it names; otherwise as given.

    Raises:
        HookOrderError: a hook names one that is not there, or that cannot come before it.
    """
    ordered: list[HookT] = []
    for stage in Stage:
        ordered += _in_stage([hook for hook in hooks if hook.stage == stage], {hook.name: hook.stage for hook in hooks})
    return ordered


def _in_stage(hooks: Sequence[HookT], stages: dict[str, Stage]) -> list[HookT]:
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for index, hook in enumerate(hooks):
        for name in hook.after:
            _check(hook, name, stages)
        sorter.add(index, *(i for i, other in enumerate(hooks) if other.name in hook.after))
    try:
        sorter.prepare()
    except CycleError as error:
        names = " -> ".join(f"'{hooks[index].name}'" for index in error.args[1])
        raise HookOrderError(f"hooks are to come after each other in a circle ({names}); change `after`") from error
    order: list[HookT] = []
    waiting: list[int] = []
    while sorter.is_active():
        waiting = sorted([*waiting, *sorter.get_ready()])
        first = waiting.pop(0)
        order.append(hooks[first])
        sorter.done(first)
    return order


def _check(hook: Ordered, name: str, stages: dict[str, Stage]) -> None:
    if name not in stages:
        there = ", ".join(f"'{known}'" for known in stages if known != hook.name)
        raise HookOrderError(f"hook '{hook.name}' is to come after '{name}', which this run does not have ({there})")
    if stages[name] > hook.stage:
        raise HookOrderError(
            f"hook '{hook.name}' is to come after '{name}', but its stage {hook.stage.name} is before "
            f"{stages[name].name}; change `stage` or `after`"
        )
