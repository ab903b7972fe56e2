"""One attempt: ranks are started, and watched until all of them have ended.

What is waited for is mostly the ranks that outlive the first failure. They wait in a collective for one that has gone,
and learn of it from its machine's kernel (at once), from the job's store (`glmforge.parallel.peers`, some ten seconds)
or, when a whole machine has gone, not at all before the process group's limit of many minutes. So once it is certain
that a rank has failed, the others get as long as it takes to write down what they know, and are then ended:

* `grace_s` where they may be saving;
* `HUNG_S` where a rank was ended by its watchdog: the watchdogs of the others are due as well, and have written where
  their ranks hang, but for one that is stopped and never will;
* `HURRY_S` where a rank has failed with an error of its own; less for programs other than ours, whose ranks notice at
  once or never;
* `KILLED_S` where a rank was killed or has crashed, or says which other one was lost: what the others would say of it,
  some ten seconds later, is known;
* `_GONE_S` where a node does not answer any more.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from glmforge.observe.job_records import RankRecord
from glmforge_ops.jobs.starters.base import Running
from glmforge_ops.jobs.supervisor.allocation.base import Allocation, ask_lost
from glmforge_ops.jobs.supervisor.bell import Bell
from glmforge_ops.jobs.supervisor.progress import Progress
from glmforge_ops.jobs.supervisor.verdict.errors import who_was_lost
from glmforge_ops.jobs.supervisor.verdict.judge import HUNG, INTERRUPTED, PREEMPTED

Say = Callable[..., None]
"""`JobDirectory.event`."""

_POLL_S, _LOOK_S = 0.1, 1.0
HURRY_S, HURRY_OTHERS_S, KILLED_S, HUNG_S = 15.0, 5.0, 3.0, 10.0
_GONE_S = 3.0
_QUIET_S = 10.0
"""Nodes are asked whether they answer only when there has been no sign of life for so long."""

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
    """Seconds. `hurry_s`, `hung_s`, `killed_s`, `gone_s`: see above.

    `ask_s`: between two looks at nodes that are silent for longer than `quiet_s`.
    """

    grace_s: float
    silent_after_s: float | None = None
    hurry_s: float = HURRY_S
    hung_s: float = HUNG_S
    killed_s: float = KILLED_S
    gone_s: float = _GONE_S
    ask_s: float = 15.0
    quiet_s: float = _QUIET_S


@dataclass
class Watched:
    """What was seen of an attempt while it ran. Times are of `time.monotonic`."""

    status: int | None = None
    signals: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    silent_s: float | None = None
    silent_since: float | None = None
    """Seconds since 1970: the last that was heard of ranks that were lost or hang."""
    ended_early: bool = False
    trained: bool = False
    ended_at: float = 0.0


def patience(first: RankRecord, limits: Limits) -> float:
    """Seconds that the other ranks have once `first` has failed: while they may have something to save or to say."""
    status = first.status
    if status is None or status in _SAVES:
        return limits.grace_s
    if status == HUNG:
        return min(limits.hung_s, limits.grace_s)
    least = min(limits.hurry_s, limits.grace_s)
    is_known = status < 0 or who_was_lost(first.last_words) is not None
    return min(limits.killed_s, least) if is_known else least


class Watch:
    """Watches ranks that run.

    Args:
        on_look: called every second.
        on_training: called once, when the first training step is done, with the number of steps before it.
        wants_more: how the attempt should give way to one on more nodes (`GROW`, `GROW_BEYOND`), or empty if it should
            not; asked now and then while it trains.
    """

    def __init__(
        self,
        running: Running,
        progress: Progress,
        allocation: Allocation,
        nodes: tuple[str, ...],
        limits: Limits,
        say: Say,
        bell: Bell,
        *,
        on_look: Callable[[], None] = lambda: None,
        on_training: Callable[[int], None] = lambda _: None,
        wants_more: Callable[[], str] = str,
    ) -> None:
        self.running, self.progress, self.allocation, self.nodes = running, progress, allocation, nodes
        self.limits, self.say, self.bell = limits, say, bell
        self.on_look, self.on_training, self.wants_more = on_look, on_training, wants_more
        self.seen = Watched()
        self._deadline: float | None = None
        self._why = ""
        self._stragglers = 0
        self._asked_at = time.monotonic()

    def until_ended(self) -> Watched:
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
            self.bell.wait(_POLL_S)
        self.seen.status, self.seen.ended_at = status, time.monotonic()
        self._look_for_steps()
        return self.seen

    def _pass_on(self) -> None:
        for number in self.bell.take():
            if number == signal.SIGINT and "INT" in self.seen.signals:
                self._end_in(0.0, "interrupted again: ends at once")
                continue
            self.seen.signals.append(number.name.removeprefix("SIG"))
            self.say("signal", f"{number.name} came, and is passed on to the ranks", signal=number.name)
            self.running.signal(_PASSED[number])

    def _look(self) -> None:
        self.on_look()
        self._look_for_steps()
        self._look_at_ranks()
        self._look_at_events()
        self._look_for_silence()
        if self.seen.trained and not self.seen.signals and self._deadline is None and (how := self.wants_more()):
            self.seen.signals.append(how)
            self.running.signal(signal.SIGUSR1)

    def _look_for_steps(self) -> None:
        if self.seen.trained:
            return
        self.progress.events()
        step, first = self.progress.step(), self.progress.first_step
        if step is not None and step > (first or 0):
            self.seen.trained = True
            self.on_training(first or 0)

    def _look_at_ranks(self) -> None:
        if self._deadline is not None:
            return
        failed = [rank for rank in self.progress.ranks() if rank.ended is not None and rank.status != 0]
        if failed:
            first = min(failed, key=lambda rank: (rank.ended or rank.began, rank.rank))
            seconds = patience(first, self.limits)
            said = f"rank {first.rank} on {first.node} ended with status {first.status}"
            self._end_in(seconds, said)
            facts = {"rank": first.rank, "node": first.node, "status": first.status, "others_have_s": seconds}
            self.say("rank ended", f"{said}; the others have {seconds:.0f} s", **facts)

    def _look_at_events(self) -> None:
        found = [event for event in self.progress.events() if event.event == "straggler"]
        for event in found[self._stragglers :]:
            self.say("straggler", f"after step {event.step}: {event.detail}", step=event.step)
        self._stragglers = len(found)

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        if now - self._asked_at < min(self.limits.ask_s, self.limits.silent_after_s or self.limits.ask_s):
            return
        self._asked_at = now
        silent_s = time.time() - self.progress.last_sign()
        if silent_s < min(self.limits.quiet_s, self.limits.silent_after_s or self.limits.quiet_s):
            return
        found, _ = ask_lost(self.allocation, self.nodes)  # a scheduler that is down for a while ends no ranks
        lost = {node: why for node, why in found.items() if node not in self.seen.lost}
        for node, why in lost.items():
            self.say("node lost", f"{node} was lost: {why}", node=node)
        self.seen.lost.update(lost)
        if lost:
            self.seen.silent_since = self.seen.silent_since or self.progress.last_sign()
            self._end_in(self.limits.gone_s, "a node was lost, and the others wait for it")
        limit = self.limits.silent_after_s
        if limit is not None and silent_s >= limit and self._deadline is None:
            self.seen.silent_s = silent_s
            self.seen.silent_since = self.progress.last_sign()
            self.say("silent", f"no line and no step of any rank for {silent_s:.0f} s", seconds=round(silent_s, 1))
            self._end_in(0.0, "the ranks are silent")

    def _end_in(self, seconds: float, why: str) -> None:
        at = time.monotonic() + seconds
        if self._deadline is None or at < self._deadline:
            self._deadline, self._why = at, why
