"""Nodes that have failed: what counts, for how long, when one is out, and how it is taken back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.launch import SupervisorConfig
from glmforge.errors import HostError, LaunchError
from glmforge.observe.job_records import Cause, Verdict, utc_now
from glmforge.observe.record_files import JsonlFile
from glmforge_ops.jobs.supervisor.nodes import FORGOTTEN_AFTER, Checker, Ledger, Nodes, allow
from glmforge_ops.jobs.supervisor.records import Records
from helpers.fake_starter import FakeAllocation
from helpers.made_jobs import made_job


@dataclass
class Allocation(FakeAllocation):
    broken: bool = False
    asked: list[str] = field(default_factory=list)

    def drain(self, node: str, reason: str | None) -> None:
        self.asked.append(f"{'undrain' if reason is None else 'drain'} {node}")
        if self.broken:
            raise HostError("scontrol: no controller")


def nodes_of(root: Path, *, checker: Checker | None = None, broken: bool = False, **config: Any) -> Nodes:
    return Nodes(Records(made_job(root)), SupervisorConfig(**config), Allocation(("a", "b"), broken=broken), checker)


def happened(nodes: Nodes, ago: timedelta, event: str, **facts: Any) -> None:
    with JsonlFile(nodes.records.job.events) as file:
        file.write({"time": (utc_now() - ago).isoformat(), "event": event} | facts)


def said(nodes: Nodes, name: str) -> list[dict[str, Any]]:
    return [event for event in nodes.records.job.read_events() if event["event"] == name]


def ledger(nodes: Nodes) -> Ledger:
    return Ledger.read(nodes.records.job)


def blamed(node: str | None, cause: Cause = Cause.MACHINE) -> Verdict:
    return Verdict(cause=cause, node=node, why="it failed")


@pytest.mark.parametrize(
    ("policy", "failures", "fault", "is_out"),
    [
        ("exclude", 2, "", False),
        ("exclude", 3, "", True),
        ("exclude", 1, "Xid 79", True),
        ("drain", 3, "", True),
        ("ignore", 9, "Xid 79", False),
    ],
)
def test_when_a_node_is_out(tmp_path: Path, policy: str, failures: int, fault: str, is_out: bool) -> None:
    """A controller that refuses to drain stops nothing."""
    nodes = nodes_of(tmp_path, bad_node=policy, broken=True)
    for number in range(1, failures + 1):
        nodes.count_failure(blamed("b"), number, {"b": fault} if fault else {})
    assert ("b" in ledger(nodes).out) is is_out
    drains = is_out and policy == "drain"
    assert nodes.allocation.asked == (["drain b"] if drains else [])  # type: ignore[attr-defined]
    assert len(said(nodes, "not drained")) == drains
    if is_out:
        assert ledger(nodes).out["b"].drained is drains
        assert (fault or "3 failures") in ledger(nodes).out["b"].reason


def test_what_counts_against_a_node(tmp_path: Path) -> None:
    """Failures of machines, each attempt once, and not for ever."""
    nodes = nodes_of(tmp_path)
    for cause in (Cause.CODE, Cause.UNKNOWN, Cause.FINISHED, Cause.PREEMPTED):
        nodes.count_failure(blamed("b", cause), 1, {})
    nodes.count_failure(blamed(None), 1, {})
    assert ledger(nodes) == Ledger()
    for number in (1, 2, 2):
        nodes.count_failure(blamed("b"), number, {})
    assert [event["failures"] for event in said(nodes, "node failed")] == [1, 2]
    happened(nodes, FORGOTTEN_AFTER, "node failed", node="b", attempt=7)
    assert ledger(nodes).failures("b", utc_now()) == 2


def test_nodes_whose_time_is_over_come_back_if_they_pass_a_check(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, checker=lambda nodes: {"b": "Xid 79"} if "b" in nodes else {}, node_back_after_s=3600)
    for name, hours, drained in (("a", 2, True), ("b", 2, False), ("c", 0.5, False), ("d", 3, False)):
        happened(nodes, timedelta(hours=hours), "node out", node=name, reason="broken", drained=drained)
    found = nodes.ledger()
    assert set(found.out) == {"b", "c"} == set(ledger(nodes).out)
    assert ledger(nodes).out["b"].reason == "a check fails: Xid 79"
    assert utc_now() - ledger(nodes).out["b"].since < timedelta(hours=1)
    assert nodes.allocation.asked == ["undrain a"]  # type: ignore[attr-defined]
    never = nodes_of(tmp_path / "never", node_back_after_s=None)
    happened(never, timedelta(days=9), "node out", node="b", reason="broken")
    assert set(never.ledger().out) == {"b"}


def test_a_checker_is_asked_where_that_is_wanted_and_may_break(tmp_path: Path) -> None:
    def broken(nodes: Sequence[str]) -> Mapping[str, str]:
        raise HostError("ssh: no")

    assert nodes_of(tmp_path / "1", checker=lambda nodes: {"a": "x"}).faults(["a"]) == {"a": "x"}
    assert nodes_of(tmp_path / "2", checker=lambda nodes: {"a": "x"}, check=False).faults(["a"]) == {}
    nodes = nodes_of(tmp_path / "3", checker=broken)
    assert nodes.faults(["a"]) == {}
    assert "ssh: no" in said(nodes, "not checked")[0]["detail"]


def test_a_node_that_was_allowed_has_never_failed_and_what_came_after_it_counts(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, node_failures=2)
    job = nodes.records.job
    nodes.count_failure(blamed("b"), 1, {})
    assert allow(job, ["b"], "anna") == ["b"]
    assert "says anna" in str(job.read_events()[-1]["detail"])
    assert ledger(nodes).failures("b", utc_now()) == 0
    for number in (2, 3):
        nodes.count_failure(blamed("b"), number, {})
    assert set(ledger(nodes).out) == {"b"}
    with pytest.raises(LaunchError, match="d is not out; out are: b"):
        allow(job, ["d"])
