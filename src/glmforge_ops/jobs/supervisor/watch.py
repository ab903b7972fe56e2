"""One attempt while it runs: signals are passed on, and the ranks that outlive a failure are ended in time.

Ranks wait in a collective for one that has gone, and learn of it at once (a machine's kernel), after some ten seconds
(`glmforge.parallel.peers`) or after many minutes (the process group's limit). So once a rank has failed, the others get
as long as it takes to write down what they know: `grace_s` where they may be saving, `hung_s` where a watchdog ended
it, `hurry_s` where it failed by an error, `killed_s` where it was killed or names another one, which is known then, and
`gone_s` where a node does not answer any more.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

from glmforge.observe.job_records import RankRecord
from glmforge_ops.jobs.starters.base import Running
from glmforge_ops.jobs.supervisor.judge import HUNG, INTERRUPTED, PREEMPTED
from glmforge_ops.jobs.supervisor.progress import Progress
from glmforge_ops.jobs.supervisor.words import who_was_lost

_POLL_S, _LOOK_S = 0.1, 1.0
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


@dataclass
class Seen:
    """What was seen of an attempt while it ran. `silent_since`: seconds since 1970."""

    status: int | None = None
    signals: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    silent_s: float | None = None
    silent_since: float | None = None
    ended_early: bool = False


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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


def patience(first: RankRecord, limits: Limits) -> float:
    """Seconds that the other ranks have once `first` has failed: while they may have something to save or to say."""
    status = first.status
    if status is None or status in _SAVES:
        return limits.grace_s
    if status == HUNG:
        return min(limits.hung_s, limits.grace_s)
    is_known = status < 0 or who_was_lost(first.last_words) is not None
    return min(limits.killed_s if is_known else limits.hurry_s, limits.hurry_s, limits.grace_s)


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
        self._stragglers = 0
        self._asked_at = time.monotonic()

    def until_ended(self) -> Seen:
        """Comes back when all ranks that can be reached have ended."""
        looked_at = 0.0
        while (status := self.running.poll()) is None:
            self._pass_on()
            if time.monotonic() - looked_at >= _LOOK_S:
                self._look()
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

    def _look(self) -> None:
        self._look_for_steps()
        self._look_at_ranks()
        found = [event for event in self.progress.events() if event.event == "straggler"]
        for event in found[self._stragglers :]:
            self.say("straggler", f"after step {event.step}: {event.detail}", step=event.step)
        self._stragglers = len(found)
        self._look_for_silence()

    def _look_for_steps(self) -> None:
        if not self._trained:
            step, first = self.progress.step(), self.progress.first_step() or 0
            if step is not None and step > first:
                self._trained = True
                self.on_training(first)

    def _look_at_ranks(self) -> None:
        failed = [rank for rank in self.progress.ranks() if rank.ended is not None and rank.status != 0]
        if failed and self._deadline is None and not self.seen.ended_early:
            first = min(failed, key=lambda rank: (rank.ended or rank.began, rank.rank))
            seconds = patience(first, self.limits)
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
