"""One attempt while it runs: signals are passed on, and the ranks that outlive a failure are ended in time.

Ranks wait in a collective for one that has gone, and notice it at once (by the machine's kernel), after some ten
seconds (`glmforge.parallel.peers`) or after many minutes (the process group's limit). So once a rank has failed, the
others get as long as it takes to write down what they know: `grace_s` where they may be saving, `hung_s` where a
watchdog ended it, `hurry_s` where it failed by an error, `killed_s` where it was killed or names another one, which is
known then, and `gone_s` where a node does not answer any more.

Everything is read from files that others write, and as seldom as may be: a job of a thousand ranks lies on storage that
its training needs.
"""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Self

from glmforge.errors import LaunchError
from glmforge.files import read_end
from glmforge.observe.job_records import AttemptDirectory, RankRecord
from glmforge.observe.run import RunDirectory
from glmforge_ops.jobs.starters.base import Running
from glmforge_ops.jobs.supervisor.evidence import Seen, first_step, read_run_events
from glmforge_ops.jobs.supervisor.judge import HUNG, INTERRUPTED, PREEMPTED
from glmforge_ops.jobs.supervisor.signs import who_was_lost

_POLL_S, _LOOK_S = 0.1, 1.0
_TAIL = 1 << 16
_LOGGED = re.compile(rb"[^ ]* [^ ]* (\d{1,17})( |$)")
_PASSED = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGUSR2: signal.SIGUSR1,
    signal.SIGINT: signal.SIGINT,
}
_ASKED = {-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGUSR1, 128 + signal.SIGUSR1}
_SAVES = frozenset({0, PREEMPTED, INTERRUPTED, *_ASKED})
"""Statuses of a rank that was asked to save and end: the others were, too, and may be slower at it."""


@dataclass(frozen=True)
class Limits:
    """Seconds; see above. Nodes that are silent for `quiet_s` are asked every `ask_s` whether they are lost.

    `silent_after_s`: without a sign of life of any rank, after which they are ended.
    """

    grace_s: float
    silent_after_s: float | None = None
    hurry_s: float = 15.0
    hung_s: float = 10.0
    killed_s: float = 3.0
    gone_s: float = 3.0
    ask_s: float = 15.0
    quiet_s: float = 10.0

    def after(self, first: RankRecord) -> float:
        """That the other ranks have once `first` has failed: while they may have something to save or to write."""
        status = first.status
        if status is None or status in _SAVES:
            return self.grace_s
        if status == HUNG:
            return min(self.hung_s, self.grace_s)
        is_known = status < 0 or who_was_lost(first.last_words) is not None
        return min(self.killed_s if is_known else self.hurry_s, self.hurry_s, self.grace_s)


class SignalQueue:
    """Signals to the supervisor, kept until the loop asks. A context manager; outside the main thread it takes none.

    A handler interrupts the loop anywhere, also within `wait`: `SimpleQueue.put` needs no lock that the loop may hold.
    """

    def __init__(self) -> None:
        self._came: SimpleQueue[signal.Signals] = SimpleQueue()
        self._taken: list[signal.Signals] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _PASSED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def wait(self, seconds: float) -> None:
        """Until a signal comes, at most so long: some seconds, because one that comes just before may wake nobody."""
        if not self._taken:
            with suppress(Empty):
                self._taken.append(self._came.get(timeout=max(0.0, seconds)))

    def take(self) -> list[signal.Signals]:
        """Those that have come since the last look."""
        taken, self._taken = self._taken, []
        return taken + [self._came.get_nowait() for _ in range(self._came.qsize())]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._came.put(signal.Signals(number))


class Progress:
    """Looks at an attempt that runs. `run` is the directory of a training run, None for another program."""

    def __init__(self, directory: AttemptDirectory, run: Path | None, began: datetime) -> None:
        self.directory, self.run, self.began = directory, None if run is None else RunDirectory(run), began
        self._metrics_before = None if self.run is None else _mark(self.run.metrics)
        self._ranks: list[RankRecord] = []
        self._ranks_mark: tuple[int, int] | None = None
        self._first_step: int | None = None
        self._events_mark: tuple[int, int] | None = None

    def ranks(self) -> list[RankRecord]:
        """As they were when a record was last written, which the time of their directory shows."""
        mark = _mark(self.directory.root)
        if mark != self._ranks_mark:
            self._ranks, self._ranks_mark = self.directory.read_ranks(), mark
        return self._ranks

    def begun(self) -> int | None:
        """Steps before this attempt's first one, once that is done; None before."""
        before, recorded = self._steps_before(), None
        if self.run is not None and _mark(self.run.metrics) != self._metrics_before:
            # What was recorded before this attempt may have been cut off and be written again.
            with suppress(LaunchError, ValueError, IndexError):
                recorded = json.loads(_last_lines(self.run.metrics)[-1]).get("step")
        logged = logged_step(self.directory)
        return before if any(isinstance(step, int) and step > before for step in (recorded, logged)) else None

    def _steps_before(self) -> int:
        mark = None if self.run is None else _mark(self.run.events)
        if self.run is not None and self._first_step is None and mark != self._events_mark:
            self._events_mark = mark
            self._first_step = first_step(read_run_events(self.run.root, self.began))
        return self._first_step or 0

    def last_sign(self) -> float:
        """The one place that says what a sign of life is: the latest time of logs, records, metrics and marks of slow
        work (`glmforge.observe.alive`); seconds since 1970."""
        times = [self.began.timestamp()]
        with suppress(OSError), os.scandir(self.directory.root) as entries:
            times += [entry.stat().st_mtime for entry in entries if entry.name.startswith("rank-")]
        for path in (self.run.metrics, self.run.alive) if self.run is not None else ():
            with suppress(OSError):
                times.append(path.stat().st_mtime)
        return max(times)


def logged_step(directory: AttemptDirectory) -> int | None:
    """Of the last lines of the first rank's log. Each has time, rank and step, `-` before the first."""
    with suppress(LaunchError):
        steps = (_LOGGED.match(line) for line in _last_lines(directory.log(0)))
        return max((int(step[1]) for step in steps if step is not None), default=None)
    return None


def _last_lines(path: Path) -> list[bytes]:
    """Whole ones among the last of a file. Raises `LaunchError`."""
    end = read_end(path, error=LaunchError, max_bytes=_TAIL)
    return end.split(b"\n")[1 if len(end) == _TAIL else 0 : -1]


def _mark(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        state = path.stat()
        return state.st_mtime_ns, state.st_size
    return None


class Watch:
    """Watches ranks that run.

    Args:
        lost_nodes: the attempt's nodes that are lost, with the reason.
        say: writes an event of the attempt.
        on_training: called once, when the first training step is done, with the number of steps before it.
    """

    def __init__(
        self,
        running: Running,
        progress: Progress,
        limits: Limits,
        signals: SignalQueue,
        lost_nodes: Callable[[], Mapping[str, str]],
        say: Callable[..., None],
        on_training: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.running, self.progress, self.limits, self.signals = running, progress, limits, signals
        self.lost_nodes, self.say, self.on_training = lost_nodes, say, on_training
        self.seen = Seen()
        self._deadline: float | None = None
        self._why = ""
        self._trained = False
        self._asked_at = time.monotonic()

    def until_ended(self) -> Seen:
        """Returns when all ranks that can be reached have ended."""
        looked_at = 0.0
        while (status := self.running.poll()) is None:
            self._pass_on()
            if time.monotonic() - looked_at >= _LOOK_S:
                self._look_for_steps()
                self._look_at_ranks()
                self._look_for_silence()
                looked_at = time.monotonic()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self.seen.ended_early = True
                self.say("ended early", f"{self._why}, and the other ranks have had their time: they are ended")
                self.running.kill()
                self._deadline = None
            self.signals.wait(_POLL_S)
        self.seen.status = status
        self._look_for_steps()
        return self.seen

    def _pass_on(self) -> None:
        for number in self.signals.take():
            if number == signal.SIGINT and "INT" in self.seen.signals:
                self._end_in(0.0, "interrupted again: ends at once")
                continue
            self.seen.signals.append(number.name.removeprefix("SIG"))
            self.say("signal", f"{number.name} came, and is passed on to the ranks", signal=number.name)
            self.running.signal(_PASSED[number])

    def _look_for_steps(self) -> None:
        if not self._trained and (before := self.progress.begun()) is not None:
            self._trained = True
            self.on_training(before)

    def _look_at_ranks(self) -> None:
        failed = [rank for rank in self.progress.ranks() if rank.ended is not None and rank.status != 0]
        if failed and self._deadline is None and not self.seen.ended_early:
            first = min(failed, key=lambda rank: (rank.ended or rank.began, rank.rank))
            seconds = self.limits.after(first)
            what = f"rank {first.rank} on {first.node} ended with status {first.status}"
            self._end_in(seconds, what)
            facts = {"rank": first.rank, "node": first.node, "status": first.status, "others_have_s": seconds}
            self.say("rank ended", f"{what}; the others have {seconds:.0f} s", **facts)

    def _look_for_silence(self) -> None:
        now, limit = time.monotonic(), self.limits.silent_after_s
        if now - self._asked_at < min(self.limits.ask_s, limit or self.limits.ask_s):
            return
        self._asked_at, since = now, self.progress.last_sign()
        silent_s = time.time() - since
        if silent_s < min(self.limits.quiet_s, limit or self.limits.quiet_s):
            return
        new = {node: why for node, why in self.lost_nodes().items() if node not in self.seen.lost}
        for node, why in new.items():
            self.say("node lost", f"{node} was lost: {why}", node=node)
        self.seen.lost.update(new)
        if new:
            self.seen.silent_since = self.seen.silent_since or since
            self._end_in(self.limits.gone_s, "a node was lost, and the others wait for it")
        if limit is not None and silent_s >= limit and self._deadline is None:
            self.seen.silent_s, self.seen.silent_since = silent_s, since
            self.say("silent", f"no line and no step of any rank for {silent_s:.0f} s", seconds=round(silent_s, 1))
            self._end_in(0.0, "the ranks are silent")

    def _end_in(self, seconds: float, why: str) -> None:
        """An earlier time stands."""
        at = time.monotonic() + seconds
        if self._deadline is None or at < self._deadline:
            self._deadline, self._why = at, why
