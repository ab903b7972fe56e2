"""The supervisor: attempt after attempt, until the job is done, or cannot get further.

Everything that it knows lies in the job's directory: attempts and how they ended (`attempts/`), decisions
(`events.jsonl`), nodes that are out (`nodes.json`). So the supervisor of the next start continues for one that was
killed with its node: it finishes the record of an attempt that was left, and decides on what is written. A lease on the
directory keeps two from working at once.

A decision is written down before it is carried out. A supervisor that finds one which was not carried out decides again
from the same facts, with the same result.
"""

import socket
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.observe.job import ATTEMPT_VARIABLE, DIRECTORY_VARIABLE, NAME_VARIABLE
from glmforge.observe.job_records import (
    STARTED,
    SUPERVISOR_LEASE,
    AttemptDirectory,
    AttemptRecord,
    Cause,
    JobDirectory,
    Verdict,
    utc_now,
)
from glmforge.report.goodput import write_goodput
from glmforge.runtime.lease import HeldError, Lease
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.starters.base import Running, Starter
from glmforge_ops.jobs.supervisor.allocation import Allocation, meeting_address
from glmforge_ops.jobs.supervisor.decide import Decision, Do, Situation, decide
from glmforge_ops.jobs.supervisor.evidence import Evidence, Seen, first_step, gather
from glmforge_ops.jobs.supervisor.judge import first_failing, judge
from glmforge_ops.jobs.supervisor.nodes import Checker, Ledger, Nodes
from glmforge_ops.jobs.supervisor.records import Records
from glmforge_ops.jobs.supervisor.watch import Limits, Progress, SignalQueue, Watch, logged_step

LEASE_S = 20.0
FIRST_PORT, NUM_PORTS = 20_000, 10_000
"""Below those that Linux gives to outgoing connections."""

_HURRY_OTHERS_S = 5.0
"""For programs other than ours, whose ranks notice a failure at once or never."""

_LEFT_OVER_S = 10.0


@dataclass
class Supervisor:
    """Of one job.

    Args:
        bears: whether the job can run on so many nodes.
        checker: None checks no node.
        limits: of waiting; None takes the job's own.
        wait_s: most seconds of a single wait between attempts, for tests.
    """

    job: JobDirectory
    starter: Starter
    allocation: Allocation
    bears: Callable[[int], bool] = lambda _: True
    checker: Checker | None = None
    limits: Limits | None = None
    wait_s: float = 3600.0

    def __post_init__(self) -> None:
        self.description = self.job.read()
        self.launch = self.description.launch
        self.config = self.launch.supervisor
        self.records = Records(self.job)
        self.nodes = Nodes(self.records, self.config, self.allocation, self.checker)
        self.given_back: list[str] = []
        """Signals that came: the allocation is to be given back."""
        self._waiting_since: float | None = None
        self._answers = True

    def run(self) -> int:
        """Supervise the job; the exit status. Raises `HeldError` if another supervisor of the job lives."""
        with SignalQueue() as self.signals, ExitStack() as stack:
            self.lease = self._take_lease(stack)
            began = len(self.job.read_attempts())
            self.records.say(
                STARTED,
                f"submission {self.allocation.submission}" + (f", {began} attempts so far" if began else ""),
                submission=self.allocation.submission,
                restart=self.allocation.restart,
                attempts=began,
            )
            status = self._loop()
            self.records.say("supervisor ended", f"status {status}", status=status)
            return status

    def _take_lease(self, stack: ExitStack) -> Lease:
        """One that the scheduler has queued again waits for a supervisor on a node that was only cut off."""
        what = f"glmforge supervise {self.job.name}"
        while True:
            try:
                return stack.enter_context(Lease(self.job.root, what, lease_s=LEASE_S, name=SUPERVISOR_LEASE))
            except HeldError:
                is_again = self.allocation.is_given and self.allocation.restart > 0
                if not is_again or not self._wait(LEASE_S):
                    raise

    def _loop(self) -> int:
        verdict = self._what_was_left()
        while True:
            decision = self._decide(verdict)
            if decision.do in (Do.DONE, Do.STOP):
                return decision.exit_code
            if decision.do is Do.REQUEUE:
                return self._requeue()
            if not self._wait(decision.after_s):
                verdict = verdict or Verdict(cause=Cause.PREEMPTED, why="a signal came before the first attempt")
            elif decision.do is Do.RESTART:
                verdict = self._attempt(decision)

    def _what_was_left(self) -> Verdict | None:
        """The verdict that is to be decided on; None if the job is to begin, or to continue after a requeue."""
        history = self.records.history()
        if not history:
            return None
        last = history[-1]
        if last.verdict is None:  # its supervisor was lost
            lost = self._lost(last.nodes) or {}
            if self._is_of_this_start(last) or not self.allocation.is_given:
                self._wait_for_ranks(self.job.attempt(last.number), lost)
            return self._settle(last, Seen(lost=lost), orphaned=True)
        decided = [event for event in self.job.read_events() if event.get("event") == "decided"]
        if decided and decided[-1].get("attempt") == last.number and decided[-1].get("do") == Do.REQUEUE:
            return None
        return last.verdict

    def _wait_for_ranks(self, directory: AttemptDirectory, lost: Collection[str]) -> None:
        """Ranks that outlive their supervisor end by themselves. Those of lost nodes leave no end."""
        deadline = time.monotonic() + self.config.grace_s + _LEFT_OVER_S
        while time.monotonic() < deadline:
            left = [rank for rank in directory.read_ranks() if rank.ended is None and rank.node not in lost]
            if not any(rank.host != socket.gethostname() or Path(f"/proc/{rank.pid}").exists() for rank in left):
                return
            self.signals.wait(0.2)

    def _decide(self, verdict: Verdict | None) -> Decision:
        if not self.given_back and self.allocation.queued_again():
            self.given_back.append("scheduler")
        history = self.records.history()
        nodes = self.allocation.nodes()
        lost, waiting = self._lost(nodes), self._waiting_since
        log = ""
        if history and verdict is not None and verdict.rank is not None:
            log = str(self.job.attempt(history[-1].number).log(verdict.rank))
        # Not a job that is being cancelled: it would come back.
        can_requeue = self.launch.requeue and self.allocation.can_requeue
        situation = Situation(
            config=self.config,
            wanted=self.launch.nodes,
            present=None if lost is None else tuple(node for node in nodes if node not in lost),
            bears=self.bears,
            can_requeue=can_requeue and (not self.given_back or self.allocation.still_ours()),
            may_stay=not self.given_back,
            waited_s=0.0 if waiting is None else time.monotonic() - waiting,
            log=log,
            ledger=self.nodes.ledger(),
        )
        if self._cancelled():
            decision = Decision(Do.STOP, "it was cancelled")
        else:
            decision = decide(verdict, history, utc_now(), situation)
        if decision.do is Do.WAIT and waiting is not None:
            return decision
        self._waiting_since = time.monotonic() if decision.do is Do.WAIT else None
        self.records.say(
            "decided",
            f"{decision.do}: {decision.why}",
            attempt=history[-1].number if history else None,
            do=decision.do.value,
            why=decision.why,
            nodes=list(decision.nodes),
            spares=list(decision.spares),
            after_s=decision.after_s,
            exit_code=decision.exit_code,
        )
        return decision

    def _lost(self, nodes: Sequence[str]) -> dict[str, str] | None:
        """Which of these nodes the allocation has lost, and why; None if the scheduler does not answer."""
        try:
            lost = dict(self.allocation.lost(nodes))
        except GlmforgeError as error:
            if self._answers:
                self.records.say("nodes unknown", f"{error}")
            self._answers = False
            return None
        self._answers = True
        return lost

    def _cancelled(self) -> bool:
        """Whether the newest submission was cancelled; not, if that cannot be read."""
        with self.records.noted("events not read"):
            return self.job.is_cancelled()
        return False

    def _attempt(self, decision: Decision) -> Verdict:
        with self.records.noted("goodput not written"):
            write_goodput(self.job)
        number = 1 + max((int(path.name) for path in self.job.attempts.glob("[0-9]*")), default=0)
        directory, not_started = self.job.attempt(number), ""
        try:
            address = meeting_address(self.allocation, decision.nodes)
        except GlmforgeError as error:
            address, not_started = "", str(error)
        attempt = AttemptRecord(
            number=number,
            submission=self.allocation.submission,
            restart=self.allocation.restart,
            nodes=list(decision.nodes),
            spares=list(decision.spares),
            ranks_per_node=self.launch.ranks,
            starter=self.starter.name,
            address=address,
            port=self._port(number),
            began=utc_now(),
        )
        try:
            directory.root.parent.mkdir(mode=0o700, exist_ok=True)
            directory.root.mkdir(mode=0o700)
            attempt.write(directory.record)
        except (OSError, GlmforgeError) as error:
            return self.records.not_begun(attempt, f"{directory.root}: cannot be written ({error})")
        shown = {"nodes", "spares", "ranks_per_node", "starter", "address", "port"}
        where = f"{len(attempt.nodes) * attempt.ranks_per_node} ranks on {', '.join(decision.nodes)}"
        facts = attempt.model_dump(mode="json", include=shown)
        self.records.say("attempt started", f"attempt {number}: {where}", attempt=number, **facts)
        self.lease.ensure_held()
        try:
            running = None if not_started else self.starter.start(directory, self._ranks(attempt))
        except GlmforgeError as error:
            running, not_started = None, str(error)
        if running is None:
            return self._settle(attempt, Seen(), not_started=not_started)
        try:
            seen = self._watch(running, attempt)
        except BaseException:  # the ranks end with the supervisor
            running.kill()
            raise
        return self._settle(attempt, seen)

    def _port(self, number: int) -> int:
        """Another one than the last attempt's, which may still be held, or than other jobs on the first node have."""
        own = zlib.crc32(f"{self.job.name} {self.allocation.submission}".encode()) + 101 * number
        return self.launch.port or FIRST_PORT + own % NUM_PORTS

    def _ranks(self, attempt: AttemptRecord) -> Assignment:
        job, launch = self.description, self.launch
        variables = {
            NAME_VARIABLE: job.name,
            ATTEMPT_VARIABLE: str(attempt.number),
            DIRECTORY_VARIABLE: str(self.job.root.absolute()),
        }
        return Assignment(
            command=list(job.command),
            cwd=str(job.directory.absolute()),
            nodes=attempt.nodes,
            ranks_per_node=launch.ranks,
            address=attempt.address,
            port=attempt.port,
            environment={**variables, **job.env, **launch.plain_env},
            secrets=list(launch.secrets),
            interface=launch.interface,
            gpus_per_node=launch.gpus_per_node,
            cpus_per_task=launch.cpus_per_task,
            container=launch.container,
            grace_s=self.config.grace_s,
            requeue=launch.requeue and self.allocation.can_requeue,
        )

    def _watch(self, running: Running, attempt: AttemptRecord) -> Seen:
        progress = Progress(self.job.attempt(attempt.number), self.description.run, attempt.began)
        hurry_s = Limits.hurry_s if self.description.kind == "train" else _HURRY_OTHERS_S
        limits = self.limits or Limits(
            self.config.grace_s, self.config.silent_after_s, ask_s=self.allocation.ask_s, hurry_s=hurry_s
        )

        def say(event: str, detail: str, **facts: Any) -> None:
            self.lease.ensure_held(max_age_s=1.0)
            self.records.say(event, detail, attempt=attempt.number, **facts)

        def on_training(step: int) -> None:
            facts = self.records.training(attempt, step, progress.ranks())
            say("training", f"the first step after step {step} is done", **facts)

        def lost() -> dict[str, str]:
            return self._lost(attempt.nodes) or {}

        return Watch(running, progress, limits, self.signals, lost, say, on_training).until_ended()

    def _settle(self, attempt: AttemptRecord, seen: Seen, *, orphaned: bool = False, not_started: str = "") -> Verdict:
        """Judge an attempt that has ended, and write down how it did."""
        evidence = self._gather(attempt, seen, orphaned=orphaned, not_started=not_started)
        history = self.records.history()
        verdict = judge(evidence, history, self.config.same_error)
        blames = verdict.cause in (Cause.MACHINE, Cause.HANG) and self.config.bad_node != "ignore"
        if blames and verdict.node is not None:
            evidence = replace(evidence, faults=self.nodes.faults([verdict.node]))
            verdict = judge(evidence, history, self.config.same_error)
        attempt = evidence.attempt.model_copy(update={"verdict": verdict})
        self.records.ended(attempt, _fault_of(evidence))
        self.nodes.count_failure(verdict, attempt.number, evidence.faults)
        if self._is_of_this_start(attempt):  # signals of an earlier one are done with
            self.given_back += seen.signals
            # Ranks that gave way without our asking got a signal of the scheduler's, which will take the nodes.
            gave_way = self.allocation.is_given and verdict.cause is Cause.PREEMPTED
            self.given_back += ["scheduler"] if gave_way else []
        return verdict

    def _gather(self, attempt: AttemptRecord, seen: Seen, **known: Any) -> Evidence:
        directory = self.job.attempt(attempt.number)
        attempt = attempt.model_copy(update={"ended": utc_now(), "status": seen.status})
        still_ours = self.allocation.still_ours() and (self.allocation.is_given or "TERM" not in seen.signals)
        evidence = gather(directory, self.description.run, attempt, seen=seen, still_ours=still_ours, **known)
        silent = any(rank.ended is None for rank in evidence.ranks)
        if seen.status != 0 and (silent or len(evidence.ranks) < evidence.world_size):
            seen.lost |= self._lost([node for node in attempt.nodes if node not in seen.lost]) or {}
        steps = [logged_step(directory), *(event.step for event in evidence.events)]
        steps += [rank.last_step for rank in evidence.ranks]
        found = {"first_step": first_step(evidence.events), "last_step": max(filter(None, steps), default=None)}
        return replace(evidence, attempt=attempt.model_copy(update=found))

    def _is_of_this_start(self, attempt: AttemptRecord) -> bool:
        return (attempt.submission, attempt.restart) == (self.allocation.submission, self.allocation.restart)

    def _wait(self, seconds: float) -> bool:
        """Whether the time passed without a signal."""
        until = time.monotonic() + min(seconds, self.wait_s)
        while True:
            self.given_back += [number.name.removeprefix("SIG") for number in self.signals.take()]
            if self.given_back or time.monotonic() >= until:
                return not self.given_back
            self.signals.wait(min(until - time.monotonic(), 1.0))

    def _requeue(self) -> int:
        out = [name for name, each in Ledger.read(self.job).out.items() if not each.drained]
        self.records.say("requeued", "the scheduler is asked to queue the job again", without=out)
        self.lease.release()
        self.allocation.requeue(sorted({*out, *self.launch.exclude}))
        return 0


def _fault_of(evidence: Evidence) -> datetime | None:
    """When it went wrong: the last sign of life of ranks that hang, or whose node was lost; else the end of the first
    that failed."""
    if evidence.seen.silent_since is not None:
        return datetime.fromtimestamp(evidence.seen.silent_since, UTC)
    first = first_failing(evidence)
    return first.ended if first is not None else None
