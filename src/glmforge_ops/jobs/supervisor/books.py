"""The books of a job: what the supervisor writes down, and reads again when it decides.

Everything goes into the job's directory and, for whoever reads the scheduler's log, on stderr. A disk that is full, or
a scheduler that does not answer, is told there and stops nobody.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from glmforge.config.launch import SupervisorConfig
from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import AttemptRecord, Cause, JobDirectory, Verdict, utc_now
from glmforge.observe.record_files import RunFileError
from glmforge.report.goodput import write_goodput
from glmforge_ops.jobs.supervisor.allocation.base import Allocation, ask_lost
from glmforge_ops.jobs.supervisor.policy.decide import Do, with_failure
from glmforge_ops.jobs.supervisor.policy.ledger import Ledger
from glmforge_ops.jobs.supervisor.verdict.evidence import Evidence
from glmforge_ops.jobs.supervisor.verdict.judge import first_failing

Checker = Callable[[Sequence[str]], Mapping[str, str]]
"""What is wrong with nodes; those that pass, and those that cannot be asked, are left out."""


@dataclass
class Books:
    """Of one job."""

    job: JobDirectory
    config: SupervisorConfig
    allocation: Allocation
    checker: Checker | None = None
    unrecorded: list[AttemptRecord] = field(default_factory=list)
    """Attempts that left no file, of this supervisor."""
    known: bool = True
    """Whether the allocation told at the last question which nodes it has lost."""

    def say(self, event: str, detail: str, **facts: Any) -> None:
        """Into the job's events and, for whoever reads the scheduler's log, on stderr. A full disk stops nobody."""
        print(f"{utc_now():%F %T} {self.job.name}: {event}: {detail}", file=sys.stderr, flush=True)
        try:
            self.job.event(event, detail, **facts)
        except RunFileError as error:
            print(f"{utc_now():%F %T} {self.job.name}: {error}", file=sys.stderr, flush=True)

    def history(self) -> list[AttemptRecord]:
        """Attempts since the job was last done or stopped: who submits it again has mended something."""
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

    def present(self) -> tuple[str, ...]:
        """The nodes of the allocation that are not lost."""
        nodes = self.allocation.nodes()
        lost = self.lost(nodes)
        return tuple(node for node in nodes if node not in lost)

    def lost(self, nodes: Sequence[str]) -> dict[str, str]:
        """Which of these nodes the allocation has lost, and why; none, where nobody answers."""
        lost, why = ask_lost(self.allocation, nodes)
        if why and self.known:
            self.say("nodes unknown", why)
        self.known = not why
        return dict(lost)

    def ledger(self) -> Ledger:
        """With nodes taken back whose time is over and that pass a check."""
        ledger = Ledger.read(self.job)
        for node in ledger.due(self.config, utc_now()):
            fault = self.faults([node]).get(node)
            if fault is None:
                self.say("node back", f"{node} is used again", node=node)
                if ledger.out()[node].drained:
                    self._tell_scheduler(self.allocation.undrain, node)
                ledger = ledger.taken_back(node)
            else:
                out = ledger.out()[node].model_copy(update={"since": utc_now(), "reason": f"a check fails: {fault}"})
                self.say("node out", f"{node} stays out: {out.reason}", node=node, reason=out.reason)
                ledger = ledger.put_out(node, out)
            self._write(ledger)
        return ledger

    def count_failure(self, verdict: Verdict, attempt: AttemptRecord, faults: Mapping[str, str]) -> None:
        ledger = Ledger.read(self.job)
        fault = faults.get(verdict.node or "", "")
        after, out = with_failure(verdict, attempt.number, ledger, self.config, utc_now(), fault)
        if after is ledger or verdict.node is None:
            return
        failures = after.failures(verdict.node, utc_now())
        self.say("node failed", f"{verdict.node}: failure {failures}", node=verdict.node, failures=failures)
        self._write(after)
        if out is not None:
            reason = after.out()[out].reason
            self.say("node out", f"{out}: {reason}; 'glmforge jobs allow' takes it back", node=out, reason=reason)
            if after.out()[out].drained:
                self._tell_scheduler(lambda node: self.allocation.drain(node, reason), out)

    def _when_it_failed(self, attempt: AttemptRecord, verdict: Verdict, evidence: Evidence) -> datetime:
        """The last sign of life of ranks that hang, or whose node was lost; else the end of the first that failed."""
        assert attempt.ended is not None
        hang = evidence.event("hang")
        silent = re.search(r"no sign of life for (\d+) s", hang.detail) if hang is not None else None
        if evidence.silent_since is not None:
            return datetime.fromtimestamp(evidence.silent_since, UTC)
        if verdict.cause is Cause.HANG and hang is not None and silent is not None:
            return hang.time - timedelta(seconds=int(silent[1]))
        if verdict.cause is Cause.NODE_LOST:
            logs = self.job.attempt(attempt.number).root.glob("rank-*.log")
            written = max((log.stat().st_mtime for log in logs), default=attempt.ended.timestamp())
            return datetime.fromtimestamp(written, UTC)
        first = first_failing(evidence)
        return first.ended if first is not None and first.ended is not None else attempt.ended

    def _tell_scheduler(self, tell: Callable[[str], None], node: str) -> None:
        try:
            tell(node)
        except GlmforgeError as error:
            self.say("not drained", f"{node}: {error}", node=node)

    def _write(self, ledger: Ledger) -> None:
        try:
            ledger.write(self.job.nodes)
        except RunFileError as error:
            self.say("nodes not written", f"{error}")

    def faults(self, nodes: Sequence[str]) -> Mapping[str, str]:
        if self.checker is None or not self.config.check or not nodes:
            return {}
        try:
            return self.checker(nodes)
        except GlmforgeError as error:
            self.say("not checked", f"{', '.join(nodes)}: {error}")
            return {}

    def cancelled(self) -> bool:
        """Whether somebody has cancelled the newest submission; not, if that cannot be read."""
        try:
            return self.job.is_cancelled()
        except GlmforgeError as error:
            self.say("events not read", f"{error}")
            return False

    def add_up(self) -> None:
        """What the job has cost until now, for the run's metrics and for Prometheus."""
        try:
            write_goodput(self.job)
        except GlmforgeError as error:
            self.say("goodput not written", f"{error}")

    def log_of(self, verdict: Verdict | None, history: Sequence[AttemptRecord]) -> str:
        if verdict is None or verdict.rank is None or not history:
            return ""
        return str(self.job.attempt(history[-1].number).log(verdict.rank))

    def write_record(self, attempt: AttemptRecord) -> None:
        try:
            attempt.write(self.job.attempt(attempt.number).record)
        except RunFileError as error:
            self.say("record not written", f"attempt {attempt.number}: {error}", attempt=attempt.number)

    def say_how_it_ended(self, attempt: AttemptRecord, verdict: Verdict, evidence: Evidence) -> None:
        assert attempt.ended is not None
        self.say(
            "attempt ended",
            f"attempt {attempt.number}: status {attempt.status}",
            attempt=attempt.number,
            status=attempt.status,
            first_step=attempt.first_step,
            last_step=attempt.last_step,
            ran_s=round((attempt.ended - attempt.began).total_seconds(), 1),
        )
        fault = self._when_it_failed(attempt, verdict, evidence)
        self.say(
            "verdict",
            f"{verdict.cause}: {verdict.why}",
            attempt=attempt.number,
            cause=verdict.cause.value,
            node=verdict.node,
            rank=verdict.rank,
            why=verdict.why,
            error=verdict.error,
            fault=min(fault, attempt.ended).isoformat(),
            detected_s=round(max(0.0, (attempt.ended - fault).total_seconds()), 2),
        )
