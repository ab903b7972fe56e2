"""How ranks that run are watched: what is passed on, how long the others wait, and when all of it is ended.

Everything here is a stand-in, time too: a second of it passes whenever the loop waits.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from glmforge.observe.job_records import RankRecord
from glmforge_ops.jobs.supervisor import watch
from glmforge_ops.jobs.supervisor.evidence import Seen
from glmforge_ops.jobs.supervisor.watch import Limits, SignalQueue, Watch
from helpers.fake_starter import FakeRunning
from helpers.made_jobs import at


@dataclass
class Scene:
    """An attempt that runs until it is killed, or for `lasts` seconds; `then` is what happens, by the second."""

    lasts: float = 200.0
    now: float = 0.0
    begun_at: int | None = None
    heard: float | None = None
    """When the last sign of life came; None: there is always one."""
    found: list[RankRecord] = field(default_factory=list)
    rung: list[signal.Signals] = field(default_factory=list)
    then: dict[int, Callable[[], object]] = field(default_factory=dict)
    said: list[tuple[str, str]] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running = FakeRunning(None)
        self.gone: dict[str, str] = {}
        self.asked = 0

    # --- what the loop asks
    def begun(self) -> int | None:
        return self.begun_at

    def ranks(self) -> list[RankRecord]:
        return self.found

    def last_sign(self) -> float:
        return self.now if self.heard is None else self.heard

    def take(self) -> list[signal.Signals]:
        rung, self.rung = self.rung, []
        return rung

    def wait(self, _: float) -> None:
        self.now += 1
        self.then.pop(int(self.now), lambda: None)()
        if self.now >= self.lasts and self.running.status is None:
            self.running.status = 0

    # --- what happens
    def ends(self, rank: int, status: int | None, second: float | None = None, words: Sequence[str] = ()) -> None:
        ended = None if status is None else at(self.now if second is None else second)
        node = "ab"[rank % 2]
        self.found.append(
            RankRecord(
                rank=rank,
                local_rank=0,
                node=node,
                host=node,
                pid=1,
                began=at(0),
                ended=ended,
                status=status,
                last_words=list(words),
            )
        )

    def names(self, event: str) -> list[str]:
        return [detail for name, detail in self.said if name == event]

    def lost(self) -> Mapping[str, str]:
        self.asked += 1
        return dict(self.gone)

    def watched(self, **limits: Any) -> Seen:
        return Watch(
            self.running,
            self,  # type: ignore[arg-type]
            Limits(**({"grace_s": 60.0} | limits)),
            self,  # type: ignore[arg-type]
            self.lost,
            lambda event, detail, **_: self.said.append((event, detail)),
            self.trained.append,
        ).until_ended()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: scene.now, time=lambda: scene.now))
    return scene


def ended_at(scene: Scene, **limits: Any) -> float:
    scene.watched(**limits)
    return scene.now


def test_ranks_that_end_well_are_left_alone(scene: Scene) -> None:
    scene.then = {5: lambda: scene.ends(0, 0), 6: lambda: scene.ends(1, None)}
    seen = scene.watched()
    assert (seen.status, seen.ended_early, scene.now) == (0, False, 200)
    assert not scene.running.killed


@pytest.mark.parametrize(
    ("status", "grace_s", "seconds"),
    [
        (1, 60, 15),
        (1, 10, 10),
        (-9, 60, 3),
        (75, 60, 60),
        (124, 60, 10),
        (143, 60, 60),
    ],
)
def test_how_long_the_others_have(scene: Scene, status: int, grace_s: float, seconds: float) -> None:
    scene.then = {5: lambda: scene.ends(1, status)}
    seen = scene.watched(grace_s=grace_s)
    assert seen.ended_early
    assert scene.now == 5 + seconds + 1
    assert scene.names("rank ended") == [f"rank 1 on b ended with status {status}; the others have {seconds:.0f} s"]


def test_it_is_the_first_that_ended_that_says_how_long(scene: Scene) -> None:
    def end() -> None:
        scene.ends(0, 75, second=4)
        scene.ends(5, -9, second=5)

    scene.then = {5: end}
    assert ended_at(scene) == 5 + 60 + 1


@pytest.mark.parametrize(
    ("came", "passed"),
    [("SIGTERM", "SIGTERM"), ("SIGUSR2", "SIGUSR1")],
)
def test_signals_are_passed_on(scene: Scene, came: str, passed: str) -> None:
    scene.then = {3: lambda: scene.rung.append(signal.Signals[came])}
    seen = scene.watched()
    assert [number.name for number in scene.running.signals] == [passed]
    assert seen.signals == [came.removeprefix("SIG")]
    assert scene.now == 200


def test_a_second_interrupt_ends_it_at_once(scene: Scene) -> None:
    scene.then = {3: lambda: scene.rung.append(signal.SIGINT), 9: lambda: scene.rung.append(signal.SIGINT)}
    seen = scene.watched()
    assert scene.now <= 11
    assert (seen.signals, scene.running.signals) == (["INT"], [signal.SIGINT])


def test_training_begins_once(scene: Scene) -> None:
    scene.then = {9: lambda: setattr(scene, "begun_at", 40)}
    scene.watched()
    assert scene.trained == [40]


def test_a_lost_node_ends_the_others_soon(scene: Scene) -> None:
    scene.then = {50: lambda: (setattr(scene, "heard", 50.0), scene.gone.update(b="DOWN"))}
    seen = scene.watched(gone_s=30.0, ask_s=5.0)
    assert seen.lost == {"b": "DOWN"}
    assert seen.silent_since == 50
    assert seen.silent_s is None
    assert scene.names("node lost") == ["b was lost: DOWN"], "though it is asked for several times"
    assert 60 + 30 <= scene.now <= 65 + 30 + 1


def test_ranks_that_are_silent_are_ended(scene: Scene) -> None:
    scene.then = {20: lambda: setattr(scene, "heard", 20.0)}
    seen = scene.watched(silent_after_s=60.0)
    assert seen.silent_s is not None
    assert 60 <= seen.silent_s <= 76
    assert seen.silent_since == 20
    assert seen.ended_early
    assert len(scene.names("silent")) == 1


def test_who_has_failed_is_not_silent(scene: Scene) -> None:
    """The others have their time, in which nothing is printed."""
    scene.heard = 0.0
    scene.then = {5: lambda: scene.ends(1, 75)}
    seen = scene.watched(silent_after_s=20.0)
    assert seen.silent_s is None
    assert scene.now == 5 + 60 + 1


def test_signals_are_kept_until_they_are_taken() -> None:
    """One that comes while nobody waits, and one that comes within the wait."""
    with SignalQueue() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        signals.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)
        assert sorted(signals.take()) == sorted([signal.SIGUSR1, signal.SIGTERM])
        assert signals.take() == []
