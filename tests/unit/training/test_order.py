"""Hooks are called by priority, after those they rely on, and otherwise as given."""

from types import SimpleNamespace
from typing import Any

import pytest

from glmforge.training.order import HookOrderError, Priority, in_order


def hook(name: str, priority: Priority = Priority.USER, *after: str) -> Any:
    return SimpleNamespace(name=name, priority=priority, after=after)


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ([hook("b"), hook("a"), hook("b")], "b a b"),
        ([hook("save", Priority.SAVE), hook("mine"), hook("lock", Priority.GUARD)], "lock mine save"),
        ([hook("c", Priority.USER, "b"), hook("d"), hook("b", Priority.USER, "a"), hook("a")], "d a b c"),
        ([hook("late", Priority.JUDGE, "early"), hook("early", Priority.MEASURE)], "early late"),
    ],
    ids=["as given", "by priority", "after others", "after another priority"],
)
def test_order(hooks: list[Any], expected: str) -> None:
    assert " ".join(found.name for found in in_order(hooks)) == expected


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (
            [hook("a", Priority.USER, "z"), hook("b")],
            "'a' comes after 'z', which this run does not have; available: 'b'",
        ),
        ([hook("a", Priority.USER, "b"), hook("b", Priority.USER, "a")], r"hooks form a cycle \('.' -> '.' -> '.'\)"),
        ([hook("a", Priority.USER, "a")], r"hooks form a cycle \('a' -> 'a'\)"),
        ([hook("a", Priority.GUARD, "b"), hook("b", Priority.SAVE)], "its priority GUARD is before SAVE"),
    ],
)
def test_an_order_that_cannot_be(hooks: list[Any], message: str) -> None:
    with pytest.raises(HookOrderError, match=message):
        in_order(hooks)
