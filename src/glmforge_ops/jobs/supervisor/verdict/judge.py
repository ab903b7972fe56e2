"""Why an attempt ended: a judgement on evidence, and nothing else.

The order in which the questions are asked is the order of certainty:

1. Did it end as it should: finished, stopped on request, gave way and saved?
2. Is a node gone? Then whatever its ranks and the others said follows from that.
3. Did it hang, and for whom did the others wait?
4. Which rank failed *first*, and what did it say? Ranks that only noticed that another had gone are asked for the name
   of that one, and are not judged themselves.

A failure of the code and one of the machine look alike the first time: what tells them apart is whether the same error
comes back at the same step, which needs history. Without it, an error of the program's own is "unknown".
"""

import signal
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from glmforge.observe.job_records import AttemptRecord, Cause, RankRecord, Verdict
from glmforge_ops.jobs.supervisor.verdict.errors import (
    Kind,
    Words,
    may_start_later,
    read_starter,
    read_words,
    signature,
    who_was_lost,
)
from glmforge_ops.jobs.supervisor.verdict.evidence import GROW, GROW_BEYOND, Evidence
from glmforge_ops.jobs.supervisor.verdict.hangs import who_hangs

PREEMPTED, HUNG, INTERRUPTED = 75, 124, 130
"""Exit statuses of our own (docs/runbook.md); 124 also is that of `timeout`."""

_ENDED_BY_OTHERS: set[int | None] = {-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT}
"""Of a rank that was told to end: by a starter once another rank had failed, or by whoever stops the job."""
_TOLD = {0, -signal.SIGKILL, 128 + signal.SIGKILL, -signal.SIGUSR1, 128 + signal.SIGUSR1}
"""Of one that did not end when it was told to, or that knows no USR1."""
_OF_MACHINE = {signal.SIGKILL}
_OF_EITHER = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


def judge(evidence: Evidence, history: Sequence[AttemptRecord] = (), same_error: int = 2) -> Verdict:
    """Why the attempt ended.

    Args:
        history: the attempts before it, in their order.
        same_error: attempts with the same error at the same step, this one among them, before the code is blamed.
    """
    verdict = _ended_well(evidence) or _node_lost(evidence) or _hang(evidence) or _orphaned(evidence)
    verdict = verdict or _failed(evidence)
    if not evidence.still_ours and evidence.signals and verdict.cause is not Cause.FINISHED:
        why = f"the scheduler, or a person, ended the job; {verdict.why}"
        return Verdict(cause=Cause.STOPPED, why=why[:2000])
    step = next((rank.last_step for rank in evidence.ranks if rank.rank == verdict.rank), None)
    verdict = verdict.model_copy(update={"step": step})
    verdict = _with_fault(verdict, evidence)
    return _blame_code(verdict, evidence, history, same_error)


def same_before(verdict: Verdict, attempt: AttemptRecord, history: Sequence[AttemptRecord]) -> list[AttemptRecord]:
    """Earlier attempts that ended with the same error at the same step; before any step, those since the last step."""
    if not verdict.error:
        return []
    if verdict.step is None:
        trained = [number for number, each in enumerate(history, 1) if each.trained]
        history = history[max(trained, default=0) :]
    return [
        each
        for each in history
        if each.verdict is not None
        and each.number != attempt.number
        and each.verdict.error == verdict.error
        and each.verdict.step == verdict.step
    ]


def _ended_well(evidence: Evidence) -> Verdict | None:
    statuses = [rank.status for rank in evidence.ranks]
    told = _told(evidence)
    if evidence.status == 0 and all(status == 0 for status in statuses):
        stopped = evidence.event("stopped")
        if stopped is not None and evidence.event("finished") is None:
            return Verdict(cause=Cause.STOPPED, why=f"the run was stopped after step {stopped.step}: {stopped.detail}")
        return Verdict(cause=Cause.FINISHED, why="all ranks ended with status 0")
    known: set[int | None] = {status for status in statuses if status} or {evidence.status}
    if known & {PREEMPTED} and known <= {PREEMPTED, *_ENDED_BY_OTHERS}:
        event = evidence.event("preempted")
        said = f": {event.detail}, after step {event.step}" if event is not None else ""
        return Verdict(cause=_given_way(evidence), why=f"it gave way and saved{said}{told}")
    if INTERRUPTED in known and known <= {INTERRUPTED, *_ENDED_BY_OTHERS}:
        return Verdict(cause=Cause.STOPPED, why="interrupted by Ctrl-C")
    if evidence.signals and known <= {*_ENDED_BY_OTHERS, *_TOLD}:
        return Verdict(cause=_given_way(evidence), why=f"it was told to end, and did not save{told}")
    return None


def _given_way(evidence: Evidence) -> Cause:
    if "INT" in evidence.signals or not evidence.still_ours:
        return Cause.STOPPED
    return Cause.TIME_LIMIT if evidence.near_limit else Cause.PREEMPTED


def _told(evidence: Evidence) -> str:
    asked = {GROW, GROW_BEYOND}
    passed = [name for name in evidence.signals if name not in asked]
    if asked & set(evidence.signals):
        return ", as the supervisor had asked, to go on with other nodes"
    return f"; the supervisor had got SIG{passed[0]} and passed it on" if passed else ""


def _node_lost(evidence: Evidence) -> Verdict | None:
    for node in evidence.attempt.nodes:
        if node in evidence.lost:
            rank = next((rank.rank for rank in evidence.ranks if rank.node == node), None)
            others = len(evidence.lost.keys() & set(evidence.attempt.nodes)) - 1
            more = f", and {others} more" if others else ""
            why = f"node {node} was lost{more}: {evidence.lost[node]}"
            return Verdict(cause=Cause.NODE_LOST, node=node, rank=rank, why=why[:2000])
    return None


def _hang(evidence: Evidence) -> Verdict | None:
    first = first_failing(evidence)
    timed_out = [rank for rank in evidence.ranks if rank.status == HUNG]
    hung = evidence.silent_s is not None or evidence.event("hang") is not None or evidence.hangs or timed_out
    if not hung or (first is not None and first.status not in (HUNG, None) and not _is_ours_to_end(first, evidence)):
        return None
    blamed = who_hangs(evidence.hangs)
    how = f"nothing was printed and no step done for {evidence.silent_s:.0f} s" if evidence.silent_s is not None else ""
    event = evidence.event("hang")
    how = how or (event.detail if event is not None else f"ranks ended with status {HUNG}")
    if blamed is None:
        return Verdict(cause=Cause.HANG, why=f"the run hung: {how}; no rank stands out"[:2000])
    node = evidence.node_of(blamed.rank)
    where = f"rank {blamed.rank} on {node}"
    return Verdict(
        cause=Cause.HANG, node=node, rank=blamed.rank, why=f"the run hung ({how}); {where}: {blamed.why}"[:2000]
    )


def _orphaned(evidence: Evidence) -> Verdict | None:
    """Ranks end when the supervisor does, and then say nothing of a cause."""
    if not evidence.orphaned:
        return None
    first = first_failing(evidence)
    if first is not None and _followed(first, evidence.ended_early) < 2 and first.status is not None:
        return None
    return Verdict(cause=Cause.UNKNOWN, why="its supervisor was lost: its node went down, or it was killed")


def _is_ours_to_end(rank: RankRecord, evidence: Evidence) -> bool:
    """Whether the rank's end was the supervisor's doing, or a starter's after the hang."""
    return rank.status in {-signal.SIGKILL, *_ENDED_BY_OTHERS} and bool(evidence.hangs or evidence.silent_s)


def _failed(evidence: Evidence) -> Verdict:
    first = first_failing(evidence)
    if first is None:
        return _without_rank(evidence)
    words = read_words(first.last_words)
    hosts = {*evidence.attempt.nodes, *(rank.host for rank in evidence.ranks), *_named_hosts(evidence)}
    error = signature(words, hosts) or None
    who = f"rank {first.rank} on {first.node} failed first"
    status = first.status
    if words.kind is Kind.STORAGE:
        return _storage(evidence, first, words, error)
    if words.kind is Kind.MACHINE:
        why = f"{who}: {words.meaning} ({words.line})"
        return Verdict(cause=Cause.MACHINE, node=first.node, rank=first.rank, why=why[:2000], error=error)
    if status is None and evidence.ended_early:
        return Verdict(cause=Cause.UNKNOWN, why="the supervisor ended the ranks, and none had said why it failed")
    if status is None:
        why = f"{who}: it left no word, nor did the program that started it"
        return Verdict(cause=Cause.MACHINE, node=first.node, rank=first.rank, why=why)
    if _signal(status) in _OF_MACHINE:
        why = f"{who}: it was killed (SIGKILL): by a person, by the node, or because memory ran out"
        return Verdict(cause=Cause.MACHINE, node=first.node, rank=first.rank, why=why)
    if _signal(status) in _OF_EITHER and words.kind in (Kind.NOTHING, Kind.OWN, Kind.DOUBTFUL):
        name = signal.Signals(_signal(status)).name
        why = f"{who}: it crashed ({name}){': ' + words.line if words.line else ''}"
        crash = f"{name} {error or ''}".strip()
        return Verdict(cause=Cause.MACHINE, node=first.node, rank=first.rank, why=why[:2000], error=crash)
    if words.kind is Kind.NOTHING and status in _ENDED_BY_OTHERS:
        said = read_starter(evidence.starter)
        why = f"{who}: it was told to end, and not by its supervisor{': ' + said if said else ''}"
        return Verdict(cause=Cause.UNKNOWN, rank=first.rank, why=why[:2000])
    if words.kind is Kind.FOLLOWED:
        why = f"{who}, and only noticed that another was lost: {words.line}"
        return Verdict(cause=Cause.UNKNOWN, rank=first.rank, why=why[:2000])
    if words.kind is Kind.PASSING:
        return Verdict(cause=Cause.UNKNOWN, rank=first.rank, why=f"{who}: {words.meaning} ({words.line})"[:2000])
    if words.kind is Kind.DOUBTFUL:
        why = f"{who}: {words.meaning} ({words.line})"
        return Verdict(cause=Cause.MACHINE, node=first.node, rank=first.rank, why=why[:2000], error=error)
    said = words.line or f"it ended with status {status}{_last_said(first)}"
    place = f" ({words.place})" if words.place else ""
    error = error or f"it ended with status {status} and named no error"
    return Verdict(cause=Cause.UNKNOWN, rank=first.rank, why=f"{who}: {said}{place}"[:2000], error=error)


def _last_said(rank: RankRecord) -> str:
    last = next((line.strip() for line in reversed(rank.last_words) if line.strip()), "")
    return f"; the last that it said: {last[:200]}" if last else ", and said nothing"


def _without_rank(evidence: Evidence) -> Verdict:
    """No rank failed, as far as the records say, and yet the attempt did."""
    status = evidence.status
    if not evidence.ranks:
        said = read_starter(evidence.starter)
        last = said or next(reversed(evidence.starter), "")
        how = f": {last}" if last else ""
        why = f"no rank was started; the starter ended with status {status}{how}"
        return Verdict(cause=Cause.UNKNOWN, why=why[:2000], error=_error_of_start(said, evidence))
    missing = evidence.world_size - len(evidence.ranks)
    more = f"; {missing} of {evidence.world_size} ranks left no record" if missing else ""
    return Verdict(cause=Cause.UNKNOWN, why=f"the starter ended with status {status}, and no rank failed{more}")


def judge_start(
    why: str,
    evidence: Evidence,
    history: Sequence[AttemptRecord] = (),
    same_error: int = 2,
    *,
    silent: str | None = None,
) -> Verdict:
    """Why an attempt began with no rank at all: what kept it from being started is `why`.

    Args:
        silent: the node that was asked something and has not answered. It is blamed, unless `why` is something that a
            person has to mend (a host key, a name that is not known): that is no other the next time.
    """
    if silent is not None and may_start_later(why):
        if silent in evidence.lost:
            why = f"node {silent} was lost: {evidence.lost[silent]}; {why}"
            return Verdict(cause=Cause.NODE_LOST, node=silent, why=why[:2000])
        return _with_fault(Verdict(cause=Cause.MACHINE, node=silent, why=why[:2000]), evidence)
    verdict = Verdict(cause=Cause.UNKNOWN, why=why[:2000], error=_error_of_start(why, evidence))
    return _blame_code(verdict, evidence, history, same_error)


def _error_of_start(said: str, evidence: Evidence) -> str | None:
    """As it comes again; None for what may be over in a moment."""
    if not said or may_start_later(said):
        return None
    return signature(Words(Kind.OWN, said), evidence.attempt.nodes) or None


def _storage(evidence: Evidence, first: RankRecord, words: Words, error: str | None) -> Verdict:
    """One node's own disk or mount, if ranks of no other node say the same; else the storage that all share."""
    same = {rank.node for rank in evidence.ranks if read_words(rank.last_words).kind is Kind.STORAGE}
    of_one = same == {first.node} and len(evidence.attempt.nodes) > 1 and "checkpoint" not in words.meaning
    node = first.node if of_one else None
    where = f"on {first.node}" if node else "of the job"
    why = f"storage {where}: {words.meaning} (rank {first.rank}: {words.line})"
    return Verdict(cause=Cause.STORAGE, node=node, rank=first.rank, why=why[:2000], error=error)


def first_failing(evidence: Evidence) -> RankRecord | None:
    """The rank that failed first; None if none failed.

    Clocks of nodes differ, so what ranks say of each other comes before when they ended: the one that most of the
    others name; else, of those with a reason of their own, the one that ended first.
    """
    failed = [rank for rank in evidence.ranks if rank.status != 0]
    if not failed:
        return None
    by_rank = {rank.rank: rank for rank in failed}
    names = Counter(named.rank for rank in failed if (named := who_was_lost(rank.last_words)) is not None)
    for number, _ in names.most_common():
        if number in by_rank and who_was_lost(by_rank[number].last_words) is None:
            return by_rank[number]
    return min(failed, key=lambda rank: (_followed(rank, evidence.ended_early), _when(rank, evidence), rank.rank))


def _followed(rank: RankRecord, ended_early: bool) -> int:
    """0: failed by itself; 1: may have; 2: ended because others had, or by the supervisor."""
    if rank.status in _ENDED_BY_OTHERS or rank.status == PREEMPTED or (rank.status is None and ended_early):
        return 2
    kind = read_words(rank.last_words).kind
    if kind is Kind.FOLLOWED:
        return 2
    return 1 if rank.status == HUNG else 0


def _when(rank: RankRecord, evidence: Evidence) -> datetime:
    """One without an end was lost with what started it: it is not known when, but not after the attempt's end."""
    return rank.ended or evidence.attempt.ended or rank.began


def _named_hosts(evidence: Evidence) -> set[str]:
    named = (who_was_lost(rank.last_words) for rank in evidence.ranks)
    return {each.host for each in named if each is not None}


def _signal(status: int) -> int:
    """The signal in a status, as `Popen` or as a shell tells it; 0 if there is none."""
    return -status if status < 0 else status - 128 if status > 128 and status - 128 in set(signal.Signals) else 0


def _with_fault(verdict: Verdict, evidence: Evidence) -> Verdict:
    """A failure that nothing explains, on a node whose check fails, is that node's."""
    if verdict.cause not in (Cause.UNKNOWN, Cause.MACHINE, Cause.HANG):
        return verdict
    rank_node = evidence.node_of(verdict.rank) if verdict.rank is not None else None
    for node in (verdict.node, rank_node):
        if node is not None and node in evidence.faults:
            why = f"{verdict.why}; node {node} fails a check: {evidence.faults[node]}"
            return verdict.model_copy(update={"cause": Cause.MACHINE, "node": node, "why": why[:2000]})
    return verdict


def _blame_code(verdict: Verdict, evidence: Evidence, history: Sequence[AttemptRecord], same_error: int) -> Verdict:
    """The same error at the same step: of the code, if no machine is to blame.

    What may be either's (a crash, a failed computation on a GPU) has to happen on another node as well.
    """
    attempt = evidence.attempt
    if verdict.cause not in (Cause.UNKNOWN, Cause.MACHINE) or verdict.error is None or _proven(verdict, evidence):
        return verdict
    before = same_before(verdict, attempt, history)
    if len(before) + 1 < same_error:
        return verdict
    first_nodes = {each.verdict.node for each in before if each.verdict is not None and each.verdict.node is not None}
    if verdict.node is not None and first_nodes <= {verdict.node} and len(before) < same_error + 1:
        return verdict
    step = "before any step" if verdict.step is None else f"after step {verdict.step}"
    numbers = ", ".join(str(each.number) for each in before)
    why = (
        f"the same error {step} as in attempt {numbers}, so it is the job's own and no other start mends it: "
        f"{verdict.error}"
    )
    return verdict.model_copy(update={"cause": Cause.CODE, "node": None, "why": why[:2000]})


def _proven(verdict: Verdict, evidence: Evidence) -> bool:
    """Whether a machine's fault is beyond doubt."""
    if verdict.node is not None and verdict.node in evidence.faults:
        return True
    lines = next((rank.last_words for rank in evidence.ranks if rank.rank == verdict.rank), [])
    return read_words(lines).kind is Kind.MACHINE
