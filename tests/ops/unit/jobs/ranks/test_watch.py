"""What signals, silence and time mean to the ranks of a node; the clock and the ranks are stand-ins."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from glmforge_ops.jobs.ranks import watch as watch_module
from glmforge_ops.jobs.ranks.watch import SILENT_S, STANDS_FOR_KILL, STANDS_FOR_TERM, Watch


@dataclass
class OneRank:
    got: list[int] = field(default_factory=list)
    is_running: bool = True
    streams: dict[Any, object] = field(default_factory=dict)

    def signal(self, number: int) -> None:
        self.got.append(number)

    def read(self, stream: object) -> bool:
        return False

    def look(self, guard: object) -> bool:
        return False


@dataclass
class Clock:
    now: float = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def watched(clock: Clock) -> Callable[..., tuple[Watch, OneRank]]:
    def make(**options: Any) -> tuple[Watch, OneRank]:
        rank = OneRank()
        return Watch([rank], None, 60.0, None, **options), rank  # type: ignore[arg-type]

    return make


def test_who_is_told_twice_to_end_has_no_more_time(watched: Any, clock: Clock) -> None:
    watch, rank = watched()
    for clock.now in (0.0, 50.0):
        watch._pass_on([signal.SIGTERM])
    clock.now = 59.0
    watch._look_up()
    assert rank.got == [signal.SIGTERM] * 2
    clock.now = 60.0
    watch._look_up()
    assert rank.got[2:] == [signal.SIGKILL]


def test_a_warning_is_no_end(watched: Any, clock: Clock) -> None:
    watch, rank = watched()
    watch._pass_on([signal.SIGUSR1, signal.SIGCHLD])
    clock.now = 1e6
    watch._look_up()
    assert rank.got == [signal.SIGUSR1]


def test_signals_that_stand_for_those_that_a_starter_does_not_pass_on(watched: Any, clock: Clock) -> None:
    watch, rank = watched()
    watch._pass_on([STANDS_FOR_TERM])
    assert rank.got == [signal.SIGTERM]
    watch._pass_on([STANDS_FOR_KILL])
    watch._look_up()
    assert rank.got == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize("beats", [True, False])
def test_silence_is_a_cut_link_where_somebody_should_speak(watched: Any, clock: Clock, beats: bool) -> None:
    watch, rank = watched(beats=beats)
    clock.now = SILENT_S
    watch._look_up()
    assert rank.got == []
    for clock.now in (SILENT_S + 1, SILENT_S + 2):
        watch._look_up()
    assert rank.got == ([signal.SIGTERM] if beats else []), "and once is enough"
    clock.now = SILENT_S + 6
    watch._look_up()
    assert rank.got == ([signal.SIGTERM, signal.SIGKILL] if beats else [])
