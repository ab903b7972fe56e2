"""What rendering a chat template may cost: steps (loops, calls) and characters that are made or looked at.

Both are counted before the work is done, so a template that asks for too much is stopped instead of waited for. The
limits grow with the conversation: a template that goes over it a few dozen times, as real ones do, never meets them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.sandbox import SecurityError

_STEPS, _STEPS_PER_MESSAGE = 100_000, 1000
_CHARACTERS, _TIMES_THE_INPUT = 20_000_000, 64
_ITEM = 64
"""What a number or a reference in a list counts as, in characters: about its bytes."""
MAX_INTEGER = 1 << 128


class Budget:
    """What is left of a rendering's steps and characters."""

    def __init__(self, steps: int, characters: int) -> None:
        self.steps, self.characters = steps, characters

    def step(self) -> None:
        """Count a round of a loop or a call."""
        self.steps -= 1
        if self.steps < 0:
            raise SecurityError("it runs too long")

    def spend(self, characters: int) -> None:
        """Count characters before they are made or looked at."""
        self.characters -= characters
        if self.characters < 0:
            raise SecurityError("its output is far longer than the conversation")

    def measure(self, value: object) -> None:
        """Count all that a value holds, at every place where it holds it."""
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self.spend(len(item))
            elif isinstance(item, Mapping):
                self.spend(2 * _ITEM * (len(item) + 1))
                stack += item.keys()
                stack += item.values()
            elif isinstance(item, list | tuple):
                self.spend(_ITEM * (len(item) + 1))
                stack += item
            else:
                self.spend(_ITEM)


_budget: ContextVar[Budget] = ContextVar("_budget")


def current() -> Budget:
    """The budget of the rendering that this thread is at."""
    return _budget.get()


@contextmanager
def budget_for(messages: list[dict[str, Any]], tools: object) -> Iterator[None]:
    """Within, `current()` is a budget that suits a conversation of this size."""
    whole = 1 << 40
    counter = Budget(0, whole)
    counter.measure([messages, tools])
    size = whole - counter.characters
    budget = Budget(_STEPS + _STEPS_PER_MESSAGE * len(messages), _CHARACTERS + _TIMES_THE_INPUT * size)
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)
