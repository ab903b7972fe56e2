"""Clocks, as far as asking through ssh can tell."""

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks.check import Context
from glmforge_ops.health.checks.clock import skew
from glmforge_ops.health.checks.facts import Facts, Times
from glmforge_ops.health.checks.outcome import Outcome
from glmforge_ops.health.checks.thresholds import Thresholds

CONTEXT = Context(ClusterConfig(), Thresholds())


def judged(*offsets: float, login_s: float = 0.5, ours: float = 0.0) -> list[Outcome]:
    """Of nodes whose clocks are `offsets` from the true time; our own is `ours` from it."""
    nodes = {}
    for index, offset in enumerate(offsets):
        asked = 1e9 + index
        started, ended, answered = asked + login_s, asked + login_s + 3, asked + login_s + 3.1
        nodes[f"n{index}"] = Facts({}, Times(asked + ours, started + offset, ended + offset, answered + ours))
    return list(skew(nodes, CONTEXT).values())


def statuses(*offsets: float, login_s: float = 0.5, ours: float = 0.0) -> list[str]:
    return [outcome.status.value for outcome in judged(*offsets, login_s=login_s, ours=ours)]


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((0, 0.1, -0.1), ["pass", "pass", "pass"]),
        ((0, 0, 3600), ["pass", "pass", "fail"]),
        ((0, 0, -60, 0), ["pass", "pass", "fail", "pass"]),
        ((0, 0, 0, 100, -100), ["pass", "pass", "pass", "fail", "fail"]),
        ((7200,), ["fail"]),
        ((0.4, 0.4, 0.4), ["pass", "pass", "pass"]),
    ],
)
def test_a_clock_off_from_most_is_found(offsets: tuple[float, ...], expected: list[str]) -> None:
    assert statuses(*offsets) == expected


def test_our_own_clock_may_be_the_wrong_one() -> None:
    assert statuses(0, 0, 0, 50, ours=300) == ["pass", "pass", "pass", "fail"]


def test_slow_logins_pass_nothing_that_they_cannot_tell() -> None:
    assert statuses(0, 0, 0, login_s=10) == ["skipped", "skipped", "skipped"]
    assert statuses(0, 0, 0, -60, login_s=10)[3] == "fail", "what is off by more than the login is found all the same"


def test_which_way_it_is_off_is_told() -> None:
    assert "ahead" in judged(0, 0, 60)[2].value
    assert "behind" in judged(0, 0, -60)[2].value


def test_a_clock_that_was_set_meanwhile_is_told() -> None:
    nodes = {"a": Facts({}, Times(100.0, 100.1, 500.0, 100.9)), "b": Facts({})}
    outcomes = skew(nodes, CONTEXT)
    assert outcomes["a"].value == "its clock was set while it was asked"
    assert outcomes["b"].status.value == "skipped"
