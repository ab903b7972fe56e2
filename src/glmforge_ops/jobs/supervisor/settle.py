"""How an attempt has ended: what is known of it is put together, judged, and written down."""

from dataclasses import replace
from datetime import timedelta

from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import AttemptRecord, Cause, JobDescription, Verdict, utc_now
from glmforge_ops.jobs.starters.base import SilentNodeError
from glmforge_ops.jobs.supervisor.attempt import Watched
from glmforge_ops.jobs.supervisor.books import Books
from glmforge_ops.jobs.supervisor.progress import logged_step
from glmforge_ops.jobs.supervisor.verdict.evidence import Evidence, first_step, gather, last_step, told_step
from glmforge_ops.jobs.supervisor.verdict.judge import judge, judge_start

_USUAL_WARNING_S = 60
"""Before a time limit, if a job's options name no other."""
_SLACK = timedelta(seconds=120)
"""A warning may come a minute earlier than asked for; saving takes time as well, but that goes on after it."""


def settle(
    books: Books,
    description: JobDescription,
    attempt: AttemptRecord,
    watched: Watched,
    *,
    orphaned: bool = False,
    failed_to_start: GlmforgeError | None = None,
) -> Verdict:
    """Judge an attempt that has ended, and write down how it did.

    Args:
        orphaned: the supervisor that had started it ended before it did.
        failed_to_start: why no rank of it was started, if that is known.
    """
    same_error = books.config.same_error
    attempt = attempt.model_copy(update={"ended": utc_now(), "status": watched.status})
    evidence = _gather(books, description, attempt, watched, orphaned)
    attempt = attempt.model_copy(update=_steps(books, evidence))
    evidence = replace(evidence, attempt=attempt)
    history = books.history()

    def judged(evidence: Evidence) -> Verdict:
        if failed_to_start is None:
            return judge(evidence, history, same_error)
        # Where the scheduler does not answer, no node is to blame for its silence.
        silent = failed_to_start.node if isinstance(failed_to_start, SilentNodeError) and books.known else None
        return judge_start(str(failed_to_start), evidence, history, same_error, silent=silent)

    verdict = judged(evidence)
    of_machine = verdict.cause in (Cause.MACHINE, Cause.HANG)
    if verdict.node is not None and of_machine and books.config.bad_node != "ignore":
        evidence = replace(evidence, faults=books.faults([verdict.node]))
        verdict = judged(evidence)
    attempt = attempt.model_copy(update={"verdict": verdict})
    books.write_record(attempt)
    books.say_how_it_ended(attempt, verdict, evidence)
    books.count_failure(verdict, attempt, evidence.faults)
    return verdict


def _gather(
    books: Books, description: JobDescription, attempt: AttemptRecord, watched: Watched, orphaned: bool
) -> Evidence:
    allocation = books.allocation
    ends = allocation.ends()
    lost = dict(watched.lost)
    evidence = gather(books.job, description, attempt)
    silent = {rank.node for rank in evidence.ranks if rank.ended is None}
    if watched.status != 0 and (silent or len(evidence.ranks) < evidence.world_size):
        lost.update(books.lost([node for node in attempt.nodes if node not in lost]))
    return replace(
        evidence,
        lost=lost,
        signals=tuple(watched.signals),
        silent_s=watched.silent_s,
        silent_since=watched.silent_since,
        ended_early=watched.ended_early,
        still_ours=allocation.still_ours() and (allocation.is_given or "TERM" not in watched.signals),
        near_limit=ends is not None and ends - utc_now() < _warning(description.launch.signal) + _SLACK,
        orphaned=orphaned,
    )


def _warning(signal: str | None) -> timedelta:
    """How long before the time limit it comes, at the earliest: of 'USR1@120'."""
    seconds = (signal or "").partition("@")[2]
    return timedelta(seconds=int(seconds) if seconds else _USUAL_WARNING_S)


def _steps(books: Books, evidence: Evidence) -> dict[str, int | None]:
    """The first and the last step of the attempt, of all who tell of one."""
    number = evidence.attempt.number
    known = [last_step(evidence.ranks), logged_step(books.job.attempt(number)), told_step(books.job, number)]
    known += [event.step for event in evidence.events]
    return {"first_step": first_step(evidence.events), "last_step": max(filter(None, known), default=None)}
