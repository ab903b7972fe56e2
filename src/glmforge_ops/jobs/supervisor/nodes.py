"""Which nodes have failed a job, which are out, and why: read from the job's events.

The supervisor writes that a node failed, is out or is used again; a person who takes one back (`glmforge jobs allow`)
writes an event as well, which clears everything before it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from glmforge.config.launch import SupervisorConfig
from glmforge.errors import LaunchError
from glmforge.observe.job_records import Cause, JobDirectory, Verdict, utc_now
from glmforge_ops.jobs.supervisor.allocation import Allocation
from glmforge_ops.jobs.supervisor.records import Records

FAILED, OUT, BACK, ALLOWED = "node failed", "node out", "node back", "node allowed"
"""Events."""

FORGOTTEN_AFTER = timedelta(days=1)
"""A failure as old as that no longer counts: in a run of months every node fails now and then."""

_COUNTED = {Cause.MACHINE, Cause.HANG, Cause.STORAGE, Cause.NODE_LOST}
"""What counts against the node that a verdict names. A lost node is not there anyway until it answers again; it is
counted all the same, since one that comes and goes is not wanted."""


@dataclass(frozen=True)
class Out:
    """A node that is not used. `drained`: in the scheduler as well, by us."""

    since: datetime
    reason: str
    drained: bool = False


@dataclass
class Ledger:
    """Nodes that have failed, with the times by attempt, and those that are out."""

    failed: dict[str, dict[int, datetime]] = field(default_factory=dict)
    out: dict[str, Out] = field(default_factory=dict)

    @classmethod
    def read(cls, job: JobDirectory) -> "Ledger":
        ledger = cls()
        for event in job.read_events():
            ledger.add(event)
        return ledger

    def add(self, event: Mapping[str, Any]) -> None:
        name, node = event.get("event"), str(event.get("node"))
        if name == FAILED:
            time = datetime.fromisoformat(event["time"])
            self.failed.setdefault(node, {})[int(event.get("attempt") or 0)] = time
        elif name == OUT:
            time = datetime.fromisoformat(event["time"])
            self.out[node] = Out(time, str(event.get("reason")), drained=bool(event.get("drained")))
        elif name in (BACK, ALLOWED):
            self.failed.pop(node, None)
            self.out.pop(node, None)

    def failures(self, node: str, now: datetime) -> int:
        """Those that count."""
        return sum(now - time < FORGOTTEN_AFTER for time in self.failed.get(node, {}).values())


def allow(job: JobDirectory, nodes: Iterable[str], who: str = "") -> list[str]:
    """Take nodes back into the job; those that were out or had failed. Raises `LaunchError` for others."""
    ledger, taken = Ledger.read(job), []
    for name in nodes:
        if name not in ledger.failed and name not in ledger.out:
            raise LaunchError(f"{job.name}: {name} is not out; out are: {', '.join(ledger.out) or 'no nodes'}")
        job.event(ALLOWED, f"{name} is used again{f', says {who}' if who else ''}", node=name)
        taken.append(name)
    return taken


Checker = Callable[[Sequence[str]], Mapping[str, str]]
"""What is wrong with nodes; those that pass, and those that cannot be asked, are left out."""


@dataclass
class Nodes:
    """The nodes of a job's allocation: counts their failures, puts them out and takes them back."""

    records: Records
    config: SupervisorConfig
    allocation: Allocation
    checker: Checker | None = None

    def ledger(self) -> Ledger:
        """With those taken back whose time is over and that pass a check."""
        ledger, now, after_s = Ledger.read(self.records.job), utc_now(), self.config.node_back_after_s
        for name, out in list(ledger.out.items()) if after_s is not None else []:
            if now - out.since < timedelta(seconds=after_s or 0.0):
                continue
            if (fault := self.faults([name]).get(name)) is not None:
                self._put_out(name, f"a check fails: {fault}", drained=out.drained)
                continue
            self.records.say(BACK, f"{name} is used again", node=name)
            ledger.add({"event": BACK, "node": name})
            if out.drained:
                self._drain(name, None)
        return ledger

    def count_failure(self, verdict: Verdict, attempt: int, faults: Mapping[str, str]) -> None:
        """What the verdict says of a node; an attempt is counted once. A check that fails confirms it at once."""
        name, ledger, now = verdict.node, Ledger.read(self.records.job), utc_now()
        if name is None or verdict.cause not in _COUNTED or attempt in ledger.failed.get(name, {}):
            return
        count, fault = ledger.failures(name, now) + 1, faults.get(name)
        self.records.say(FAILED, f"{name}: failure {count}", node=name, attempt=attempt, failures=count)
        if self.config.bad_node == "ignore" or name in ledger.out or (count < self.config.node_failures and not fault):
            return
        reason = f"a check fails: {fault}" if fault else f"{count} failures, the last: {verdict.why}"
        self._put_out(name, reason, drained=self.config.bad_node == "drain")
        if self.config.bad_node == "drain":
            self._drain(name, reason)

    def faults(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """What checks find wrong with these nodes."""
        with self.records.noted("not checked", f"{', '.join(nodes)}: "):
            if self.checker is not None and self.config.check:
                return self.checker(nodes)
        return {}

    def _put_out(self, name: str, reason: str, *, drained: bool) -> None:
        detail = f"{name}: {reason}; 'glmforge jobs allow' takes it back"
        self.records.say(OUT, detail, node=name, reason=reason, drained=drained)

    def _drain(self, name: str, reason: str | None) -> None:
        with self.records.noted("not drained", f"{name}: "):
            self.allocation.drain(name, reason)
