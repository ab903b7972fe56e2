"""Hooks are called by stage, after those they rely on, and otherwise as given."""

from types import SimpleNamespace
from typing import Any

import pytest

from glmforge.training.order import HookOrderError, Stage, in_order


def hook(name: str, stage: Stage = Stage.USER, *after: str) -> Any:
    return SimpleNamespace(name=name, stage=stage, after=after)


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ([hook("b"), hook("a"), hook("b")], "b a b"),
        ([hook("save", Stage.SAVE), hook("mine"), hook("lock", Stage.GUARD)], "lock mine save"),
        ([hook("c", Stage.USER, "b"), hook("d"), hook("b", Stage.USER, "a"), hook("a")], "d a b c"),
        ([hook("late", Stage.JUDGE, "early"), hook("early", Stage.MEASURE)], "early late"),
    ],
    ids=["as given", "by stage", "after others", "after another stage"],
)
def test_order(hooks: list[Any], expected: str) -> None:
    assert " ".join(found.name for found in in_order(hooks)) == expected


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ([hook("a", Stage.USER, "z"), hook("b")], r"'a' is to come after 'z', which this run does not have \('b'\)"),
        ([hook("a", Stage.USER, "b"), hook("b", Stage.USER, "a")], r"in a circle \('.' -> '.' -> '.'\)"),
        ([hook("a", Stage.USER, "a")], r"in a circle \('a' -> 'a'\)"),
        ([hook("a", Stage.GUARD, "b"), hook("b", Stage.SAVE)], "its stage GUARD is before SAVE"),
    ],
)
def test_an_order_that_cannot_be(hooks: list[Any], message: str) -> None:
    with pytest.raises(HookOrderError, match=message):
        in_order(hooks)
