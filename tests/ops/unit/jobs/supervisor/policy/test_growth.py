"""When a job leaves its allocation for a larger one, and when not."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glmforge.config.launch import SupervisorConfig
from glmforge.errors import HostError
from glmforge.observe.job_records import utc_now
from glmforge_ops.jobs.supervisor.allocation.slurm import SlurmAllocation
from glmforge_ops.jobs.supervisor.books import Books, Checker
from glmforge_ops.jobs.supervisor.more_nodes import MoreNodes
from glmforge_ops.jobs.supervisor.policy.growth import ATTEMPT_STARTED, GROWS, Growth, futile_times
from glmforge_ops.jobs.supervisor.policy.ledger import Ledger, Node, Out
from glmforge_ops.jobs.supervisor.verdict.evidence import GROW_BEYOND
from helpers.fake_starter import FakeAllocation, a_job
from helpers.made_jobs import made_attempt

Said = tuple[str, list[dict[str, Any]]]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def growth(clock: Clock, have: int = 1, futile: int = 0, bears: int = 99, **config: Any) -> Growth:
    chosen = SupervisorConfig(**({"max_nodes": 4, "grow_after_s": 100} | config))
    return Growth(chosen, have, lambda count: count <= bears, futile, clock)


def after(seconds: float, idle: int, watched: Growth, clock: Clock) -> int | None:
    assert watched.look(idle, recomputes=False) is None
    clock.now += seconds
    return watched.look(idle, recomputes=False)


@pytest.mark.parametrize(
    ("idle", "bears", "expected"), [(1, 99, 2), (2, 99, 3), (9, 99, 4), (9, 2, 2), (9, 1, None), (0, 99, None)]
)
def test_to_as_many_as_there_are_and_it_bears(idle: int, bears: int, expected: int | None) -> None:
    clock = Clock()
    assert after(100, idle, growth(clock, bears=bears), clock) == expected


@pytest.mark.parametrize("config", [{"max_nodes": None}, {"grow_after_s": None}, {"max_nodes": 1}])
def test_only_where_it_is_asked_for(config: dict[str, Any]) -> None:
    clock = Clock()
    watched = growth(clock, **config)
    assert not watched.is_wanted
    assert after(1e6, 9, watched, clock) is None


def test_not_before_they_have_been_idle_for_a_while_without_a_break() -> None:
    clock = Clock()
    watched = growth(clock)
    assert after(99, 1, watched, clock) is None
    assert watched.look(0, recomputes=False) is None  # somebody else has taken it
    assert after(99, 1, watched, clock) is None
    clock.now += 1
    assert watched.look(1, recomputes=False) == 2


def test_not_while_steps_are_done_again() -> None:
    clock = Clock()
    watched = growth(clock)
    assert watched.look(1, recomputes=True) is None
    clock.now += 100
    assert watched.look(1, recomputes=True) is None
    assert watched.look(1, recomputes=False) == 2


def test_twice_as_late_after_each_time_that_was_in_vain() -> None:
    clock = Clock()
    assert after(399, 1, growth(clock, futile=2), clock) is None
    assert after(400, 1, growth(clock, futile=2), clock) == 2


def grew(have: int, *, beyond: bool = True) -> dict[str, Any]:
    return {"event": GROWS, "have": have, "beyond": beyond}


def started(nodes: int) -> dict[str, Any]:
    return {"event": ATTEMPT_STARTED, "nodes": ["n"] * nodes}


QUEUED = {"event": "requeued"}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], 0),
        ([started(1), grew(1), QUEUED, started(1)], 1),
        ([started(1), grew(1), started(1)], 0),  # its ranks failed while they saved, and it stayed where it was
        ([started(1), grew(1), QUEUED, started(1), grew(1), QUEUED, started(1)], 2),
        ([grew(1), {"event": "decided"}, QUEUED, started(1), started(3)], 1),
        ([grew(1), QUEUED, started(2), started(1)], 0),  # it was worth it, and a node was lost since
        ([grew(1), QUEUED, started(1), grew(1), QUEUED, started(2), started(1), grew(1), QUEUED, started(1)], 1),
        ([grew(1), QUEUED, started(1), grew(1, beyond=False), started(1)], 1),
        ([grew(1)], 0),  # nobody knows yet
    ],
)
def test_times_in_vain_are_counted_until_one_was_not(events: list[dict[str, Any]], expected: int) -> None:
    assert futile_times(events) == expected


class Reached:
    """Progress of an attempt that has done so many steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def step(self) -> int:
        return self._step


def looks_of(
    tmp_path: Path,
    place: FakeAllocation,
    step: int,
    *,
    checker: Checker | None = None,
    **supervisor: Any,
) -> tuple[MoreNodes, list[dict[str, Any]]]:
    """Of the second attempt, on one node of the two that the job might have; the first did five steps."""
    options = {"min_nodes": 1, "max_nodes": 2, "grow_after_s": 1e-9, **supervisor}
    job = a_job(tmp_path, kind="train", run=tmp_path / "run", nodes=2, supervisor=options)
    made_attempt(job, 1, nodes=["a"], last_step=5)
    attempt, description = made_attempt(job, 2, nodes=["a"]), job.read()
    books, said = Books(job, description.launch.supervisor, place, checker), list[dict[str, Any]]()

    def say(event: str, detail: str, **facts: Any) -> None:
        said.append({"event": event} | json.loads(json.dumps(facts)))

    looks = MoreNodes(books, description, lambda count: count in (1, 2), attempt, Reached(step), say)  # type: ignore[arg-type]
    return looks, said


def wishes(tmp_path: Path, others: tuple[str, ...], step: int, *, can_requeue: bool = True, **supervisor: Any) -> Said:
    place = FakeAllocation(("a",), can_requeue=can_requeue, is_given=True, others=others)
    looks, said = looks_of(tmp_path, place, step, **supervisor)
    return looks.wanted() or looks.wanted(), said


def test_a_run_leaves_for_idle_nodes(tmp_path: Path) -> None:
    found, said = wishes(tmp_path, ("a", "b"), 6)
    assert found == GROW_BEYOND
    assert said == [{"event": GROWS, "nodes": ["b"], "beyond": True, "have": 1, "to": 2}]


@pytest.mark.parametrize(
    ("others", "step", "options"),
    [
        (("b",), 5, {}),  # a state that is being computed again
        ((), 6, {}),
        (("a",), 6, {}),
        (("b",), 6, {"can_requeue": False}),
        (("b",), 6, {"max_nodes": None}),
    ],
)
def test_a_run_stays(tmp_path: Path, others: tuple[str, ...], step: int, options: dict[str, Any]) -> None:
    assert wishes(tmp_path, others, step, **options) == ("", [])


def test_a_look_checks_nodes_that_are_out_once(tmp_path: Path) -> None:
    """A check takes many seconds, in which nobody watches the ranks."""
    checked: list[str] = []

    def checker(nodes: Sequence[str]) -> Mapping[str, str]:
        checked.extend(nodes)
        return {"z": "Xid 79"}

    place = FakeAllocation(("a",), can_requeue=True, is_given=True, others=("b",))
    looks, _ = looks_of(tmp_path, place, 6, checker=checker, node_back_after_s=1e-9)
    out = Out(since=utc_now(), reason="broken")
    Ledger(nodes={"z": Node(out=out)}).write(looks.books.job.nodes)
    looks.wanted()
    assert checked == ["z"]


def test_a_scheduler_that_does_not_answer_is_asked_no_more_and_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Clock(), list[float]()
    monkeypatch.setattr("glmforge_ops.jobs.supervisor.more_nodes.time", SimpleNamespace(monotonic=clock))

    class Down(FakeAllocation):
        def lost(self, nodes: Sequence[str]) -> Mapping[str, str]:
            asked.append(clock.now)
            raise HostError("'scontrol' gave no answer within 30 s")

        def idle(self) -> tuple[str, ...]:
            raise AssertionError("it is asked on")

    looks, _ = looks_of(tmp_path, Down(("a",), can_requeue=True, is_given=True), 6)
    for clock.now in (1.0, 60.0, 299.0, 302.0):
        assert looks.wanted() == ""
    assert asked == [1.0, 302.0]


def test_slurm_has_idle_nodes_only_while_nobody_waits_for_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("squeue", "sinfo"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    # Names of nodes, which need not be those of their hosts (%n), and only of those that answer.
    (tmp_path / "sinfo").write_text(
        """#!/bin/sh
        case "$*" in *--Node*) ;; *) exit 1;; esac
        case "$*" in *--responding*) ;; *) echo n9;; esac
        case "$*" in *%N*) printf 'n2\\nn3\\n';; *) printf 'host2\\nhost3\\n';; esac
        """
    )
    (tmp_path / "squeue").write_text("#!/bin/sh\nprintf 'Dependency\\nBeginTime\\n'\n")
    allocation = SlurmAllocation("7", 0, ("n1",))
    assert allocation.idle() == ("n2", "n3")
    for reason in ("Resources", "Priority"):
        (tmp_path / "squeue").write_text(f"#!/bin/sh\nprintf 'Dependency\\n{reason}\\n'\n")
        assert allocation.idle() == ()
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert allocation.idle() == ()
