"""The supervisor: attempt after attempt, until the job is done, or nothing that it may do brings it further.

All that it knows lies in the job's directory: what has been tried and how it ended (`attempts/`), what was decided
(`events.jsonl`), which nodes are out (`nodes.json`). So one that was killed with its node goes on in another where it
stopped: it finishes the record of an attempt that was left, and decides on what is written. Two at once are told apart
by a lease on the directory.

A decision is written down before it is carried out. One that finds a decision which was not carried out decides again
from the same facts, and comes to the same.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import STARTED, SUPERVISOR_LEASE, AttemptRecord, Cause, JobDirectory, Verdict, utc_now
from glmforge.observe.record_files import RunFileError
from glmforge.runtime.lease import HeldError, Lease
from glmforge_ops.jobs.starters.base import Running, Starter
from glmforge_ops.jobs.supervisor.allocation.base import Allocation
from glmforge_ops.jobs.supervisor.allocation.run_lock import last_seen, run_locks
from glmforge_ops.jobs.supervisor.attempt import HURRY_OTHERS_S, HURRY_S, Limits, Watch, Watched
from glmforge_ops.jobs.supervisor.bell import Bell
from glmforge_ops.jobs.supervisor.books import Books, Checker
from glmforge_ops.jobs.supervisor.leftovers import wait_for_ranks
from glmforge_ops.jobs.supervisor.more_nodes import MoreNodes
from glmforge_ops.jobs.supervisor.phases import phases_of
from glmforge_ops.jobs.supervisor.policy.decide import Decision, Do, Situation, decide
from glmforge_ops.jobs.supervisor.policy.growth import ATTEMPT_STARTED
from glmforge_ops.jobs.supervisor.policy.ledger import Ledger
from glmforge_ops.jobs.supervisor.progress import Progress
from glmforge_ops.jobs.supervisor.ranks import ranks_of, where_to_meet
from glmforge_ops.jobs.supervisor.settle import settle
from glmforge_ops.jobs.supervisor.verdict.evidence import GROW, read_ranks, run_directory
from glmforge_ops.jobs.supervisor.worlds import bearable

LEASE_S = 20.0


@dataclass
class Supervisor:
    """Of one job.

    Args:
        checker: None looks at no node.
        limits: of waiting; None takes the job's own.
        wait_s: most seconds of a single wait between attempts, for tests.
    """

    job: JobDirectory
    starter: Starter
    allocation: Allocation
    checker: Checker | None = None
    limits: Limits | None = None
    wait_s: float = 3600.0

    def __post_init__(self) -> None:
        self.description = self.job.read()
        self.launch = self.description.launch
        self.config = self.launch.supervisor
        self.books = Books(self.job, self.config, self.allocation, self.checker)
        self.bears = bearable(self.job, self.description)
        self.locks = run_locks(self.job, self.books.say)
        self.told: list[str] = []
        """Signals that came, and mean that the allocation is to be given back."""
        self._waiting_since: float | None = None

    def run(self) -> int:
        """Supervise the job; the exit status. Raises `HeldError` if another supervisor of the job lives."""
        with Bell() as self.bell, ExitStack() as stack:
            self.lease = self._take_lease(stack)
            began = len(self.job.read_attempts())
            self.books.say(
                STARTED,
                f"submission {self.allocation.submission}" + (f", {began} attempts so far" if began else ""),
                submission=self.allocation.submission,
                restart=self.allocation.restart,
                attempts=began,
            )
            with self.allocation.watched(self.job.root):
                status = self._loop()
            self.books.say("supervisor ended", f"status {status}", status=status)
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
                return self._requeue(verdict)
            if not self._wait(decision.after_s):
                verdict = verdict or Verdict(cause=Cause.PREEMPTED, why="told to end before the first attempt")
                continue
            if decision.do is Do.RESTART:
                verdict = self._attempt(decision)

    def _what_was_left(self) -> Verdict | None:
        """The verdict that is to be decided on; None if the job is to begin, or to go on after a requeue."""
        history = self.books.history()
        if not history:
            return None
        last = history[-1]
        queued_s = self.allocation.queued_s()
        for lock, seen in product(self.locks, last_seen(self.job)):
            lock.was_seen(seen, queued_s)
        self._look_at_locks()
        if last.verdict is None:
            return self._finish_record(last)
        self._ranks_have_ended(last)
        decided = [event for event in self.job.read_events() if event.get("event") == "decided"]
        if decided and decided[-1].get("attempt") == last.number and decided[-1].get("do") == Do.REQUEUE:
            return None
        return last.verdict

    def _finish_record(self, attempt: AttemptRecord) -> Verdict:
        """Of an attempt whose supervisor was lost."""
        directory = self.job.attempt(attempt.number)
        lost = self.books.lost(attempt.nodes)
        if self._is_of_this_start(attempt) or not self.allocation.is_given:
            wait_for_ranks(directory, lost, self.config.grace_s, self.bell)
        return self._settle(attempt, Watched(lost=lost), orphaned=True)

    def _decide(self, verdict: Verdict | None) -> Decision:
        if not self.told and self.allocation.queued_again():
            self.told.append("scheduler")
        history = self.books.history()
        ledger = self.books.ledger()
        waited = 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since
        situation = Situation(
            config=self.config,
            wanted=self.launch.nodes,
            present=self.books.present(),
            bears=self.bears,
            can_requeue=self._can_requeue(),
            may_stay=not self.told,
            waited_s=waited,
            last_words=self.books.log_of(verdict, history),
            ledger=ledger,
            known=self.books.known,
        )
        if self.books.cancelled():
            decision = Decision(Do.STOP, "it was cancelled")
        else:
            decision = decide(verdict, history, utc_now(), situation)
        if decision.do is not Do.WAIT:
            self._waiting_since = None
        if decision.do is not Do.WAIT or self._waiting_since is None:
            self.books.say(
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
        if decision.do is Do.WAIT and self._waiting_since is None:
            self._waiting_since = time.monotonic()
        return decision

    def _can_requeue(self) -> bool:
        """Not a job that is being cancelled: it would come back."""
        wanted = self.allocation.can_requeue and self.launch.requeue
        return wanted and (not self.told or self.allocation.still_ours())

    def _attempt(self, decision: Decision) -> Verdict:
        self.books.add_up()
        number = 1 + max((int(path.name) for path in self.job.attempts.glob("[0-9]*")), default=0)
        directory = self.job.attempt(number)
        address, port, no_place = self._where_to_meet(decision.nodes, number)
        attempt = AttemptRecord(
            number=number,
            submission=self.allocation.submission,
            restart=self.allocation.restart,
            nodes=list(decision.nodes),
            spares=list(decision.spares),
            ranks_per_node=self.launch.ranks,
            starter=self.starter.name,
            address=address,
            port=port,
            began=utc_now(),
        )
        try:
            directory.root.parent.mkdir(mode=0o700, exist_ok=True)
            directory.root.mkdir(mode=0o700)
            attempt.write(directory.record)
        except OSError as error:
            return self.books.not_begun(attempt, f"{directory.root}: cannot be written ({error.strerror})")
        except RunFileError as error:
            return self.books.not_begun(attempt, str(error))
        shown = {"nodes", "spares", "ranks_per_node", "starter", "address", "port"}
        facts = attempt.model_dump(mode="json", include=shown)
        where = f"{len(attempt.nodes) * attempt.ranks_per_node} ranks on {', '.join(decision.nodes)}"
        self.books.say(ATTEMPT_STARTED, f"attempt {number}: {where}", attempt=number, **facts)
        if no_place is not None:
            return self._settle(attempt, Watched(), failed_to_start=no_place)
        ranks = ranks_of(self.description, directory, decision.nodes, number, address, port)
        self.lease.ensure_held()
        try:
            running = self.starter.start(ranks)
        except GlmforgeError as error:
            return self._settle(attempt, Watched(), failed_to_start=error)
        try:
            watched = self._watch(running, attempt)
        except BaseException:  # whatever ends the supervisor ends its ranks
            running.kill()
            raise
        return self._settle(attempt, watched)

    def _where_to_meet(self, nodes: tuple[str, ...], number: int) -> tuple[str, int, GlmforgeError | None]:
        """Address and port; or none, and why."""
        try:
            return *where_to_meet(self.description, self.starter, self.allocation, nodes, number), None
        except GlmforgeError as error:
            return "", 0, error

    def _watch(self, running: Running, attempt: AttemptRecord) -> Watched:
        directory = self.job.attempt(attempt.number)
        limits = self.limits or self._limits()
        progress = Progress(directory, run_directory(self.description), attempt.began)

        def say(event: str, detail: str, **facts: Any) -> None:
            self.lease.ensure_held(max_age_s=1.0)
            self.books.say(event, detail, attempt=attempt.number, **facts)

        def on_training(step: int) -> None:
            facts = phases_of(self.job, attempt, progress.ranks())
            say("training", f"the first step after step {step} is done", step=step, **facts)

        return Watch(
            running,
            progress,
            self.allocation,
            tuple(attempt.nodes),
            limits,
            say,
            self.bell,
            on_look=self._look_at_locks,
            on_training=on_training,
            wants_more=MoreNodes(self.books, self.description, self.bears, attempt, progress, say).wanted,
        ).until_ended()

    def _limits(self) -> Limits:
        hurry_s = HURRY_S if self.description.kind == "train" else HURRY_OTHERS_S
        return Limits(self.config.grace_s, self.config.silent_after_s, hurry_s, ask_s=self.allocation.ask_s)

    def _settle(self, attempt: AttemptRecord, watched: Watched, **known: Any) -> Verdict:
        verdict = settle(self.books, self.description, attempt, watched, **known)
        self._ranks_have_ended(attempt)
        self.told += [name for name in watched.signals if name != GROW]
        if self._is_of_this_start(attempt):  # what an earlier one was told is done
            self._leaves_allocation(verdict, watched)
        return verdict

    def _is_of_this_start(self, attempt: AttemptRecord) -> bool:
        return (attempt.submission, attempt.restart) == (self.allocation.submission, self.allocation.restart)

    def _ranks_have_ended(self, attempt: AttemptRecord) -> None:
        ranks, _ = read_ranks(self.job.attempt(attempt.number).root)
        for lock in self.locks:
            lock.ended(ranks)

    def _look_at_locks(self) -> None:
        for lock in self.locks:
            lock.look()

    def _leaves_allocation(self, verdict: Verdict, watched: Watched) -> None:
        """Ranks that gave way without our asking were told by the scheduler, which will take the nodes."""
        gave_way = verdict.cause in (Cause.PREEMPTED, Cause.TIME_LIMIT)
        if self.allocation.is_given and gave_way and GROW not in watched.signals:
            self.told.append("scheduler")

    def _wait(self, seconds: float) -> bool:
        """Whether the time passed without a signal."""
        until = time.monotonic() + min(seconds, self.wait_s)
        while True:
            self._look_at_locks()
            self.told += [number.name.removeprefix("SIG") for number in self.bell.take()]
            if self.told:
                return False
            left = until - time.monotonic()
            if left <= 0:
                return True
            self.bell.wait(min(left, 1.0))

    def _requeue(self, verdict: Verdict | None) -> int:
        out = [name for name, each in Ledger.read(self.job).out().items() if not each.drained]
        locks = [lock.seen() for lock in self.locks]
        self.books.say("requeued", "the scheduler is asked to queue the job again", without=out, locks=locks)
        self.lease.release()
        self.allocation.requeue(sorted({*out, *self.launch.exclude}))
        return 0
