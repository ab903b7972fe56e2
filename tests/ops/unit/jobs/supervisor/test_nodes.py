"""Nodes that have failed: what counts, for how long, and how a person takes one back."""

from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.supervisor.nodes import Failure, Ledger, Node, Out, allow
from helpers.made_jobs import BEGAN, at, made_job


def failure(second: float, attempt: int = 1) -> Failure:
    return Failure(time=at(second), attempt=attempt, why="it failed")


def out(second: float) -> Node:
    return Node(failures=(failure(second),), out=Out(since=at(second), reason="broken"))


def test_failures_add_up_and_are_bounded() -> None:
    ledger = Ledger()
    for number in range(1, 121):
        ledger = ledger.failed("b", failure(number, number))
    assert [each.attempt for each in ledger.nodes["b"].failures] == list(range(21, 121))


def test_who_is_taken_back_has_never_failed() -> None:
    ledger = Ledger(nodes={"b": out(5)}).taken_back("b")
    assert (ledger.out(), ledger.failures("b", at(6))) == ({}, 0)


def test_what_came_after_a_node_was_allowed_counts() -> None:
    node = Node(failures=(failure(1), failure(9)), out=Out(since=at(9), reason="again"))
    ledger = Ledger(nodes={"b": node}).allowed("b", at(5))
    assert ledger.nodes["b"].failures == (failure(9),)
    assert list(ledger.out()) == ["b"]
    assert not Ledger(nodes={"b": node}).allowed("b", at(9)).out()


def test_one_that_has_failed_and_is_not_out_yet_can_be_allowed(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    Ledger(nodes={"b": Node(failures=(failure(1),)), "c": out(1)}).write(job.nodes)
    assert allow(job, ["b"], "anna") == ["b"]
    assert "says anna" in str(job.read_events()[-1]["detail"])
    assert Ledger.read(job).failures("b", BEGAN) == 0
    with pytest.raises(LaunchError, match="d is not out; out are: c"):
        allow(job, ["d"])


def test_a_damaged_file_is_told_with_the_mend(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    job.nodes.write_text('{"nodes": {"b": {"failures": 7}}}')
    with pytest.raises(LaunchError, match="move it away"):
        Ledger.read(job)
