"""When a job leaves its allocation for a larger one, and when not."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.launch import SupervisorConfig
from glmforge.launch.supervisor import supervise as supervise_module
from glmforge.launch.supervisor.evidence import GROW_BEYOND
from glmforge.launch.supervisor.growth import GROWS, Growth, futile_times
from glmforge.launch.supervisor.slurm import SlurmAllocation
from glmforge.launch.supervisor.supervise import Supervisor
from helpers.fake_starter import Ends, FakeAllocation, FakeStarter, a_job


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


def test_times_in_vain_are_counted_until_one_was_not() -> None:
    assert futile_times([], 1) == 0
    assert futile_times([grew(1), grew(1), grew(1, beyond=False), {"event": "decided"}], 1) == 2
    assert futile_times([grew(1), grew(1)], 2) == 0
    assert futile_times([grew(2), grew(1), grew(2)], 2) == 1


def supervised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...], **supervisor: Any
) -> tuple[Supervisor, FakeAllocation]:
    """A job that gives way when it is asked to, on one node of the two that it might have."""
    monkeypatch.setattr(supervise_module, "_GROW_EVERY_S", 0.0)
    run = tmp_path / "run"
    run.mkdir()
    options = {"min_nodes": 1, "max_nodes": 2, "grow_after_s": 1e-9, **supervisor}
    job = a_job(tmp_path, kind="train", run=run, nodes=2, supervisor=options)
    place = FakeAllocation(("a",), can_requeue=True, is_given=True, others=others)
    made = Supervisor(job, FakeStarter(lambda ranks, number: {0: Ends(75, step=5)}), place, wait_s=0.0)
    made.bears = lambda count: count in (1, 2)
    return made, place


class Reached:
    """Progress of an attempt that has done so many steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def step(self) -> int:
        return self._step


def wishes(made: Supervisor, step: int) -> tuple[str, list[dict[str, Any]]]:
    """After two looks at most."""
    made.books.allocation = made.allocation
    verdict = made._attempt(made._decide(None))
    assert verdict.cause.value == "preempted"
    attempt = made.job.read_attempts()[-1].model_copy(update={"number": 2})
    watched, said = Growth(made.config, 1, made.bears, 0), list[dict[str, Any]]()
    looks: list[int] = []

    def say(event: str, detail: str, **facts: Any) -> None:
        said.append({"event": event} | json.loads(json.dumps(facts)))

    found = ""
    while not found and len(looks) < 2:
        looks.append(step)
        found = made._wants_more(attempt, Reached(step), watched, say)  # type: ignore[arg-type]
    return found, said


@pytest.fixture
def _lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """`_attempt` is called outside of `run`, which holds the lease."""
    from unittest.mock import MagicMock

    monkeypatch.setattr(Supervisor, "lease", MagicMock(), raising=False)
    monkeypatch.setattr(Supervisor, "bell", MagicMock(take=lambda: []), raising=False)


@pytest.mark.usefixtures("_lease")
def test_the_supervisor_leaves_for_idle_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = supervised(tmp_path, monkeypatch, ("a", "b"))
    found, said = wishes(made, step=6)
    assert found == GROW_BEYOND
    assert said == [{"event": GROWS, "nodes": ["b"], "beyond": True, "have": 1, "to": 2}]


@pytest.mark.usefixtures("_lease")
@pytest.mark.parametrize("why", ["recomputes", "nothing idle", "own nodes only", "no requeue", "not asked for"])
def test_the_supervisor_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    others = {"nothing idle": (), "own nodes only": ("a",)}.get(why, ("b",))
    options = {"max_nodes": None} if why == "not asked for" else {}
    made, place = supervised(tmp_path, monkeypatch, others, **options)
    place.can_requeue = why != "no requeue"
    assert wishes(made, step=5 if why == "recomputes" else 6) == ("", [])


def test_slurm_has_idle_nodes_only_while_nobody_waits_for_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("squeue", "sinfo"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sinfo").write_text("#!/bin/sh\nprintf 'n2\\nn3\\n'\n")
    (tmp_path / "squeue").write_text("#!/bin/sh\nprintf 'Dependency\\nBeginTime\\n'\n")
    allocation = SlurmAllocation("7", 0, ("n1",))
    assert allocation.idle() == ("n2", "n3")
    for reason in ("Resources", "Priority"):
        (tmp_path / "squeue").write_text(f"#!/bin/sh\nprintf 'Dependency\\n{reason}\\n'\n")
        assert allocation.idle() == ()
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert allocation.idle() == ()
