"""What the supervisor writes down, and reads again when it decides: events, attempts, nodes that are out.

Everything goes into the job's directory and, for whoever reads the scheduler's log, on stderr. A disk that is full, or
a scheduler that does not answer, is told there and stops nobody.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from glmforge.config.launch import SupervisorConfig
from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import AttemptRecord, Cause, JobDirectory, RankRecord, Verdict, utc_now
from glmforge.report.goodput import write_goodput
from glmforge_ops.jobs.supervisor.decide import Do, with_failure
from glmforge_ops.jobs.supervisor.nodes import Ledger, Out
from glmforge_ops.jobs.supervisor.places import Allocation

Checker = Callable[[Sequence[str]], Mapping[str, str]]
"""What is wrong with nodes; those that pass, and those that cannot be asked, are left out."""


@dataclass
class Records:
    """Of one job.

    Attributes:
        unrecorded: attempts of this supervisor that left no file.
        known: whether the allocation told at the last question which nodes it has lost.
    """

    job: JobDirectory
    config: SupervisorConfig
    allocation: Allocation
    checker: Checker | None = None
    unrecorded: list[AttemptRecord] = field(default_factory=list)
    known: bool = True

    def say(self, event: str, detail: str, **facts: Any) -> None:
        """An event of the job."""
        print(f"{utc_now():%F %T} {self.job.name}: {event}: {detail}", file=sys.stderr, flush=True)
        try:
            self.job.event(event, detail, **facts)
        except GlmforgeError as error:
            print(f"{utc_now():%F %T} {self.job.name}: {error}", file=sys.stderr, flush=True)

    @contextmanager
    def _said(self, event: str, about: str = "") -> Iterator[None]:
        """What fails within the block is an event, and no reason to end."""
        try:
            yield
        except GlmforgeError as error:
            self.say(event, f"{about}{error}")

    def history(self) -> list[AttemptRecord]:
        """Attempts since the job was last done or stopped: whoever submits it again has fixed something."""
        settled = 0
        for event in self.job.read_events():
            if event.get("event") == "decided" and event.get("do") in (Do.DONE, Do.STOP):
                settled = max(settled, int(event.get("attempt") or 0))
        attempts = sorted([*self.unrecorded, *self.job.read_attempts()], key=lambda attempt: attempt.number)
        return [attempt for attempt in attempts if attempt.number > settled]

    def not_begun(self, attempt: AttemptRecord, why: str) -> Verdict:
        """An attempt that could not even be noted: it counts, or a full disk would be tried again without an end."""
        verdict = Verdict(cause=Cause.STORAGE, why=why)
        self.unrecorded.append(attempt.model_copy(update={"ended": utc_now(), "verdict": verdict}))
        self.say("verdict", why, attempt=attempt.number, cause=verdict.cause.value, node=None, rank=None, why=why)
        return verdict

    def ended(self, attempt: AttemptRecord, fault: datetime | None) -> None:
        """Write down how an attempt has ended; `fault`: when it went wrong, if that is known."""
        verdict, ended = attempt.verdict, attempt.ended
        assert verdict is not None
        assert ended is not None
        with self._said("record not written", f"attempt {attempt.number}: "):
            attempt.write(self.job.attempt(attempt.number).record)
        facts: dict[str, Any] = {"attempt": attempt.number, "status": attempt.status, "first_step": attempt.first_step}
        facts |= {"last_step": attempt.last_step, "ran_s": round((ended - attempt.began).total_seconds(), 1)}
        self.say("attempt ended", f"attempt {attempt.number}: status {attempt.status}", **facts)
        fault = min(fault or ended, ended)
        told = verdict.model_dump(mode="json", exclude={"step"})
        told |= {"attempt": attempt.number, "fault": fault.isoformat(), "detected_s": _seconds(fault, ended)}
        self.say("verdict", f"{verdict.cause}: {verdict.why}", **told)

    def training(self, attempt: AttemptRecord, step: int, ranks: Sequence[RankRecord]) -> dict[str, Any]:
        """Facts of an attempt that has just done its first step; after a failure, how long each part took since:
        until all ranks had ended, until the next attempt began, until its first rank ran, until its first step."""
        now, process = utc_now(), min((rank.began for rank in ranks), default=attempt.began)
        facts: dict[str, Any] = {"step": step, "first_step_s": _seconds(process, now)}
        verdict: dict[str, Any] = next(
            (event for event in reversed(self.job.read_events()) if event.get("event") == "verdict"), {}
        )
        try:
            fault, ended = datetime.fromisoformat(verdict["fault"]), datetime.fromisoformat(verdict["time"])
        except (KeyError, TypeError, ValueError):
            return facts
        return facts | {
            "after": verdict.get("attempt"),
            "cause": verdict.get("cause"),
            "detected_s": _seconds(fault, ended),
            "decided_s": _seconds(ended, attempt.began),
            "started_s": _seconds(attempt.began, process),
            "total_s": _seconds(fault, now),
        }

    def present(self) -> tuple[str, ...]:
        """The nodes of the allocation that are not lost."""
        nodes = self.allocation.nodes()
        lost = self.lost(nodes)
        return tuple(node for node in nodes if node not in lost)

    def lost(self, nodes: Sequence[str]) -> dict[str, str]:
        """Which of these nodes the allocation has lost, and why; none, where nobody answers."""
        try:
            lost = dict(self.allocation.lost(nodes))
        except GlmforgeError as error:
            if self.known:
                self.say("nodes unknown", f"{error}")
            self.known = False
            return {}
        self.known = True
        return lost

    def ledger(self) -> Ledger:
        """What is known of nodes, with those taken back whose time is over and that pass a check."""
        nodes = Ledger.read(self.job)
        for name in nodes.due(self.config, utc_now()):
            fault = self.faults([name]).get(name)
            if fault is None:
                self.say("node back", f"{name} is used again", node=name)
                if nodes.out()[name].drained:
                    with self._said("not drained", f"{name}: "):
                        self.allocation.drain(name, None)
                nodes = nodes.taken_back(name)
            else:
                reason = f"a check fails: {fault}"
                self.say("node out", f"{name} stays out: {reason}", node=name, reason=reason)
                nodes = nodes.put_out(name, Out(since=utc_now(), reason=reason, drained=nodes.out()[name].drained))
            self._write(nodes)
        return nodes

    def count_failure(self, verdict: Verdict, attempt: AttemptRecord, faults: Mapping[str, str]) -> None:
        before = Ledger.read(self.job)
        fault = faults.get(verdict.node or "", "")
        after, out = with_failure(verdict, attempt.number, before, self.config, utc_now(), fault)
        if after is before or verdict.node is None:
            return
        failures = after.failures(verdict.node, utc_now())
        self.say("node failed", f"{verdict.node}: failure {failures}", node=verdict.node, failures=failures)
        self._write(after)
        if out is not None:
            reason = after.out()[out].reason
            self.say("node out", f"{out}: {reason}; 'glmforge jobs allow' takes it back", node=out, reason=reason)
            if after.out()[out].drained:
                with self._said("not drained", f"{out}: "):
                    self.allocation.drain(out, reason)

    def _write(self, nodes: Ledger) -> None:
        with self._said("nodes not written"):
            nodes.write(self.job.nodes)

    def faults(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """What checks find wrong with these nodes."""
        with self._said("not checked", f"{', '.join(nodes)}: "):
            if self.checker is not None and self.config.check and nodes:
                return self.checker(nodes)
        return {}

    def cancelled(self) -> bool:
        """Whether somebody has cancelled the newest submission; not, if that cannot be read."""
        with self._said("events not read"):
            return self.job.is_cancelled()
        return False

    def add_up(self) -> None:
        """What the job has cost until now, for the run's metrics and for Prometheus."""
        with self._said("goodput not written"):
            write_goodput(self.job)


def _seconds(since: datetime, until: datetime) -> float:
    return round(max(0.0, (until - since).total_seconds()), 2)
