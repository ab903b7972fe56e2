"""Why an attempt ended: a judgement on evidence, and nothing else.

The questions are in the order of certainty:

1. Did it end as it should: finished, stopped on request, gave way and saved?
2. Is a node gone? Then the errors of its ranks and of the others follow from that.
3. Did it hang, and for which rank did the others wait?
4. Which rank failed *first*, and what are its last lines? Ranks that only noticed that another had gone name that one,
   and are not judged themselves.

A failure of the code and one of the machine look alike the first time: they differ in whether the same error comes
back at the same step, which needs history. Without it, an error of the program's own is "unknown".
"""

import signal
from collections import Counter
from collections.abc import Sequence

from glmforge.observe.job_records import AttemptRecord, Cause, RankRecord, Verdict
from glmforge_ops.jobs.supervisor.evidence import Evidence
from glmforge_ops.jobs.supervisor.signs import (
    Kind,
    Words,
    not_launched,
    read_end,
    read_starter,
    read_words,
    signature,
    who_was_lost,
)

PREEMPTED, HUNG, INTERRUPTED = 75, 124, 130
"""Exit statuses of our own (docs/runbook.md); 124 also is that of `timeout`."""

_ENDED_BY_OTHERS: set[int | None] = {-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT}
"""Of a rank that got a signal: from the supervisor once another rank had failed, or from whoever stops the job."""
_ON_SIGNAL = {0, -signal.SIGKILL, 128 + signal.SIGKILL, -signal.SIGUSR1, 128 + signal.SIGUSR1, *_ENDED_BY_OTHERS}
"""Of one that did not save when the supervisor passed a signal on."""


def judge(evidence: Evidence, history: Sequence[AttemptRecord] = (), same_error: int = 2) -> Verdict:
    """Why the attempt ended.

    Args:
        history: the attempts before it, in their order.
        same_error: attempts with the same error at the same step, this one among them, before the code is blamed.
    """
    if evidence.not_started:
        verdict = _verdict(Cause.UNKNOWN, evidence.not_started)
    else:
        verdict = (
            _ended_well(evidence) or _node_lost(evidence) or _hang(evidence) or _orphaned(evidence) or _failed(evidence)
        )
    if not evidence.still_ours and evidence.seen.signals and verdict.cause is not Cause.FINISHED:
        return _verdict(Cause.STOPPED, f"the scheduler, or a person, ended the job; {verdict.why}")
    step = next((rank.last_step for rank in evidence.ranks if rank.rank == verdict.rank), None)
    verdict = _with_fault(verdict.model_copy(update={"step": step}), evidence)
    return _blame_code(verdict, evidence, history, same_error)


def _verdict(
    cause: Cause, why: str, *, rank: int | None = None, node: str | None = None, error: str | None = None
) -> Verdict:
    return Verdict(cause=cause, why=why[:2000], rank=rank, node=node, error=error)


def _ended_well(evidence: Evidence) -> Verdict | None:
    signals, statuses = evidence.seen.signals, [rank.status for rank in evidence.ranks]
    passed = f"; the supervisor had passed SIG{signals[0]} on" if signals else ""
    if evidence.seen.status == 0 and all(status == 0 for status in statuses):
        stopped = evidence.event("stopped")
        if stopped is not None and evidence.event("finished") is None:
            return _verdict(Cause.STOPPED, f"the run was stopped after step {stopped.step}: {stopped.detail}")
        return _verdict(Cause.FINISHED, "all ranks ended with status 0")
    known: set[int | None] = {status for status in statuses if status} or {evidence.seen.status}
    gave_way = Cause.STOPPED if "INT" in signals or not evidence.still_ours else Cause.PREEMPTED
    if PREEMPTED in known and known <= {PREEMPTED, *_ENDED_BY_OTHERS}:
        event = evidence.event("preempted")
        how = f": {event.detail}, after step {event.step}" if event is not None else ""
        return _verdict(gave_way, f"it gave way and saved{how}{passed}")
    if INTERRUPTED in known and known <= {INTERRUPTED, *_ENDED_BY_OTHERS}:
        return _verdict(Cause.STOPPED, "interrupted by Ctrl-C")
    if signals and known <= _ON_SIGNAL:
        return _verdict(gave_way, f"it ended by a signal, and did not save{passed}")
    return None


def _node_lost(evidence: Evidence) -> Verdict | None:
    lost = [node for node in evidence.attempt.nodes if node in evidence.seen.lost]
    if not lost:
        return None
    rank = next((rank.rank for rank in evidence.ranks if rank.node == lost[0]), None)
    more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
    why = f"node {lost[0]} was lost{more}: {evidence.seen.lost[lost[0]]}"
    return _verdict(Cause.NODE_LOST, why, node=lost[0], rank=rank)


def _hang(evidence: Evidence) -> Verdict | None:
    first, silent_s, event = first_failing(evidence), evidence.seen.silent_s, evidence.event("hang")
    timed_out = any(rank.status == HUNG for rank in evidence.ranks)
    if silent_s is None and event is None and not evidence.dumps and not timed_out:
        return None
    if first is not None and first.status not in (HUNG, None):
        ended_after_it = first.status in {-signal.SIGKILL, *_ENDED_BY_OTHERS} and (evidence.dumps or silent_s)
        if not ended_after_it:
            return None
    how = event.detail if event is not None else f"ranks ended with status {HUNG}"
    how = how if silent_s is None else f"no line and no step for {silent_s:.0f} s"
    blamed = _who_hangs(evidence)
    if blamed is None:
        return _verdict(Cause.HANG, f"the run hung: {how}; no rank stands out")
    rank, why = blamed
    node = evidence.node_of(rank)
    return _verdict(Cause.HANG, f"the run hung ({how}); rank {rank} on {node}: {why}", rank=rank, node=node)


def _who_hangs(evidence: Evidence) -> tuple[int, str] | None:
    """The rank for which the others waited, and why it is that one; None if that is not clear.

    It wrote nothing, since its process was stopped or could not run Python; or it is in no collective while the others
    are; or it has done fewer steps.
    """
    if not evidence.dumps:
        return None
    silent = sorted(set(range(evidence.world_size)) - evidence.dumps.keys())
    outside = [rank for rank, in_collective in evidence.dumps.items() if in_collective is False]
    steps = sorted((rank.last_step, rank.rank) for rank in evidence.ranks if rank.last_step is not None)
    if len(silent) == 1 and evidence.world_size > 1:
        return silent[0], "it alone wrote nothing when the run hung: its process was stopped or blocked"
    if len(outside) == 1 and any(evidence.dumps.values()):
        return outside[0], "it is in no collective, and the others wait in one"
    if len(steps) > 1 and steps[0][0] < steps[1][0]:
        return steps[0][1], f"it had done {steps[0][0]} steps, and the others {steps[1][0]}"
    return None


def _orphaned(evidence: Evidence) -> Verdict | None:
    """Ranks end when the supervisor does, and then show no cause."""
    first = first_failing(evidence)
    failed_itself = first is not None and _followed(first, evidence) < 2 and first.status is not None
    if not evidence.orphaned or failed_itself:
        return None
    return _verdict(Cause.UNKNOWN, "its supervisor was lost: its node went down, or it was killed")


def _failed(evidence: Evidence) -> Verdict:
    """By the rank that failed first: its last lines, else how it ended."""
    first = first_failing(evidence)
    if first is None:
        return _no_rank_failed(evidence)
    end = read_end(first.last_words, first.status)
    if first.status is None and evidence.seen.ended_early and not end.line:
        return _verdict(Cause.UNKNOWN, "the supervisor ended the ranks before one had shown why it failed")
    who = f"rank {first.rank} on {first.node} failed first"
    if end.kind is Kind.NOTHING and first.status in _ENDED_BY_OTHERS:
        said = read_starter(evidence.starter)
        why = f"{who}: it got a signal, and not from its supervisor{f': {said}' if said else ''}"
        return _refusing_node(evidence) or _verdict(Cause.UNKNOWN, why, rank=first.rank)
    error = None if end.kind in (Kind.FOLLOWED, Kind.PASSING) else signature(str(end), _hosts(evidence))
    if end.kind is Kind.STORAGE:
        return _storage(evidence, first, end, error)
    why = f"{who}, and only noticed that another was lost: {end.line}" if end.kind is Kind.FOLLOWED else f"{who}: {end}"
    cause, node = (Cause.MACHINE, first.node) if end.kind in (Kind.MACHINE, Kind.DOUBTFUL) else (Cause.UNKNOWN, None)
    return _verdict(cause, why, rank=first.rank, node=node, error=error)


def _no_rank_failed(evidence: Evidence) -> Verdict:
    """By the records; and yet the attempt has."""
    said, how = read_starter(evidence.starter), f"the starter ended with status {evidence.seen.status}"
    if (refusing := _refusing_node(evidence)) is not None:
        return refusing
    if not evidence.ranks:
        return _verdict(Cause.UNKNOWN, f"no rank was started; {how}{f': {said}' if said else ''}")
    missing = evidence.world_size - len(evidence.ranks)
    more = f"; {missing} of {evidence.world_size} ranks left no record" if missing else ""
    return _verdict(Cause.UNKNOWN, f"{how}, and no rank failed{more}")


def _refusing_node(evidence: Evidence) -> Verdict | None:
    """A node on which srun could not start its task."""
    node = not_launched(evidence.starter)
    if node not in evidence.attempt.nodes:
        return None
    return _verdict(Cause.MACHINE, f"no rank was started on {node}: {read_starter(evidence.starter)}", node=node)


def _storage(evidence: Evidence, first: RankRecord, end: Words, error: str | None) -> Verdict:
    """One node's own disk or mount, if ranks of no other node fail of it; else the storage that all share."""
    same = {rank.node for rank in evidence.ranks if read_words(rank.last_words).kind is Kind.STORAGE}
    of_one = same == {first.node} and len(evidence.attempt.nodes) > 1 and "checkpoint" not in end.meaning
    node = first.node if of_one else None
    why = f"storage {f'on {node}' if node else 'of the job'}: {end.meaning} (rank {first.rank}: {end.line})"
    return _verdict(Cause.STORAGE, why, rank=first.rank, node=node, error=error)


def first_failing(evidence: Evidence) -> RankRecord | None:
    """The rank that failed first; None if none failed.

    Clocks of nodes differ, so the names that ranks give come before the times of their ends: the one that most of the
    others name; else, of those with a reason of their own, the one that ended first.
    """
    failed = {rank.rank: rank for rank in evidence.ranks if rank.status != 0}
    names = Counter(named[0] for rank in failed.values() if (named := who_was_lost(rank.last_words)) is not None)
    for number, _ in names.most_common():
        if number in failed and who_was_lost(failed[number].last_words) is None:
            return failed[number]

    def order(rank: RankRecord) -> tuple[int, object, int]:
        # One without an end was lost with what started it: when is not known, but before the attempt's end.
        return _followed(rank, evidence), rank.ended or evidence.attempt.ended or rank.began, rank.rank

    return min(failed.values(), key=order, default=None)


def _followed(rank: RankRecord, evidence: Evidence) -> int:
    """0: failed by itself; 1: may have; 2: ended because others had, or by the supervisor."""
    by_us = rank.status is None and evidence.seen.ended_early
    if rank.status in _ENDED_BY_OTHERS or rank.status == PREEMPTED or by_us:
        return 2
    if read_words(rank.last_words).kind is Kind.FOLLOWED:
        return 2
    return 1 if rank.status == HUNG else 0


def _hosts(evidence: Evidence) -> set[str]:
    named = (who_was_lost(rank.last_words) for rank in evidence.ranks)
    hosts = {*evidence.attempt.nodes, *(rank.host for rank in evidence.ranks)}
    return hosts | {each[1] for each in named if each is not None}


def _with_fault(verdict: Verdict, evidence: Evidence) -> Verdict:
    """A failure that nothing explains, on a node whose check fails, is that node's."""
    if verdict.cause in (Cause.UNKNOWN, Cause.MACHINE, Cause.HANG):
        for node in (verdict.node, None if verdict.rank is None else evidence.node_of(verdict.rank)):
            if node is not None and node in evidence.faults:
                why = f"{verdict.why}; node {node} fails a check: {evidence.faults[node]}"
                return verdict.model_copy(update={"cause": Cause.MACHINE, "node": node, "why": why[:2000]})
    return verdict


def _blame_code(verdict: Verdict, evidence: Evidence, history: Sequence[AttemptRecord], same_error: int) -> Verdict:
    """The same error at the same step: of the code, if no machine is to blame.

    What may be either's (a crash, a failed computation on a GPU) has to happen on another node as well.
    """
    ends = (read_end(rank.last_words, rank.status) for rank in evidence.ranks if rank.rank == verdict.rank)
    is_machines = verdict.node in evidence.faults or any(end.kind is Kind.MACHINE for end in ends)
    if verdict.cause not in (Cause.UNKNOWN, Cause.MACHINE) or verdict.error is None or is_machines:
        return verdict
    if verdict.step is None:  # before any step: only attempts since the last step
        history = history[max((place for place, each in enumerate(history, 1) if each.trained), default=0) :]
    found = [(each.number, each.verdict) for each in history if each.number != evidence.attempt.number]
    before = {
        number: old.node for number, old in found if old and (old.error, old.step) == (verdict.error, verdict.step)
    }
    if len(before) + 1 < same_error:
        return verdict
    if verdict.node is not None and {*before.values()} <= {verdict.node, None} and len(before) < same_error + 1:
        return verdict
    step = "before any step" if verdict.step is None else f"after step {verdict.step}"
    why = (
        f"the same error {step} as in attempt {', '.join(map(str, before))}, so it is the job's own, and another start "
        f"does not fix it: {verdict.error}"
    )
    return verdict.model_copy(update={"cause": Cause.CODE, "node": None, "why": why[:2000]})
