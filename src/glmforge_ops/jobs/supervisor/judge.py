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

from glmforge.observe.job_records import AttemptRecord, Cause, RankRecord, Verdict
from glmforge_ops.jobs.supervisor.evidence import Evidence
from glmforge_ops.jobs.supervisor.hangs import who_hangs
from glmforge_ops.jobs.supervisor.words import (
    Kind,
    Words,
    may_start_later,
    not_launched,
    read_starter,
    read_words,
    signature,
    who_was_lost,
)

PREEMPTED, HUNG, INTERRUPTED = 75, 124, 130
"""Exit statuses of our own (docs/runbook.md); 124 also is that of `timeout`."""

_ENDED_BY_OTHERS: set[int | None] = {-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT}
"""Of a rank that was told to end: by the supervisor once another rank had failed, or by whoever stops the job."""
_TOLD = {0, -signal.SIGKILL, 128 + signal.SIGKILL, -signal.SIGUSR1, 128 + signal.SIGUSR1}
"""Of one that did not end when it was told to, or that knows no USR1."""
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}
"""The machine's fault or the code's."""


def judge(evidence: Evidence, history: Sequence[AttemptRecord] = (), same_error: int = 2) -> Verdict:
    """Why the attempt ended.

    Args:
        history: the attempts before it, in their order.
        same_error: attempts with the same error at the same step, this one among them, before the code is blamed.
    """
    verdict = _not_started(evidence) or _ended_well(evidence) or _node_lost(evidence) or _hang(evidence)
    verdict = verdict or _orphaned(evidence) or _failed(evidence)
    if not evidence.still_ours and evidence.signals and verdict.cause is not Cause.FINISHED:
        return _verdict(Cause.STOPPED, f"the scheduler, or a person, ended the job; {verdict.why}")
    step = next((rank.last_step for rank in evidence.ranks if rank.rank == verdict.rank), None)
    verdict = _with_fault(verdict.model_copy(update={"step": step}), evidence)
    return _blame_code(verdict, evidence, history, same_error)


def _verdict(
    cause: Cause, why: str, *, rank: RankRecord | None = None, node: str | None = None, error: str | None = None
) -> Verdict:
    return Verdict(cause=cause, why=why[:2000], rank=None if rank is None else rank.rank, node=node, error=error)


def _not_started(evidence: Evidence) -> Verdict | None:
    """No starter could be run."""
    why = evidence.not_started
    return _verdict(Cause.UNKNOWN, why, error=_error_of_start(why, evidence)) if why else None


def _ended_well(evidence: Evidence) -> Verdict | None:
    statuses = [rank.status for rank in evidence.ranks]
    told = f"; the supervisor had got SIG{evidence.signals[0]} and passed it on" if evidence.signals else ""
    if evidence.status == 0 and all(status == 0 for status in statuses):
        stopped = evidence.event("stopped")
        if stopped is not None and evidence.event("finished") is None:
            return _verdict(Cause.STOPPED, f"the run was stopped after step {stopped.step}: {stopped.detail}")
        return _verdict(Cause.FINISHED, "all ranks ended with status 0")
    known: set[int | None] = {status for status in statuses if status} or {evidence.status}
    if known & {PREEMPTED} and known <= {PREEMPTED, *_ENDED_BY_OTHERS}:
        event = evidence.event("preempted")
        said = f": {event.detail}, after step {event.step}" if event is not None else ""
        return _verdict(_given_way(evidence), f"it gave way and saved{said}{told}")
    if INTERRUPTED in known and known <= {INTERRUPTED, *_ENDED_BY_OTHERS}:
        return _verdict(Cause.STOPPED, "interrupted by Ctrl-C")
    if evidence.signals and known <= {*_ENDED_BY_OTHERS, *_TOLD}:
        return _verdict(_given_way(evidence), f"it was told to end, and did not save{told}")
    return None


def _given_way(evidence: Evidence) -> Cause:
    if "INT" in evidence.signals or not evidence.still_ours:
        return Cause.STOPPED
    return Cause.TIME_LIMIT if evidence.near_limit else Cause.PREEMPTED


def _node_lost(evidence: Evidence) -> Verdict | None:
    lost = [node for node in evidence.attempt.nodes if node in evidence.lost]
    if not lost:
        return None
    rank = next((rank for rank in evidence.ranks if rank.node == lost[0]), None)
    more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
    why = f"node {lost[0]} was lost{more}: {evidence.lost[lost[0]]}"
    return _verdict(Cause.NODE_LOST, why, node=lost[0], rank=rank)


def _hang(evidence: Evidence) -> Verdict | None:
    first, silent_s, event = first_failing(evidence), evidence.silent_s, evidence.event("hang")
    timed_out = any(rank.status == HUNG for rank in evidence.ranks)
    if not (silent_s is not None or event is not None or evidence.hangs or timed_out):
        return None
    if first is not None and first.status not in (HUNG, None):
        ours = first.status in {-signal.SIGKILL, *_ENDED_BY_OTHERS} and (evidence.hangs or silent_s)
        if not ours:  # else it was ended after the hang
            return None
    how = event.detail if event is not None else f"ranks ended with status {HUNG}"
    how = how if silent_s is None else f"nothing was printed and no step done for {silent_s:.0f} s"
    blamed = who_hangs(evidence.hangs)
    if blamed is None:
        return _verdict(Cause.HANG, f"the run hung: {how}; no rank stands out")
    node = evidence.node_of(blamed.rank)
    why = f"the run hung ({how}); rank {blamed.rank} on {node}: {blamed.why}"
    return _verdict(Cause.HANG, why, node=node).model_copy(update={"rank": blamed.rank})


def _orphaned(evidence: Evidence) -> Verdict | None:
    """Ranks end when the supervisor does, and then say nothing of a cause."""
    if not evidence.orphaned:
        return None
    first = first_failing(evidence)
    if first is not None and _followed(first, evidence.ended_early) < 2 and first.status is not None:
        return None
    return _verdict(Cause.UNKNOWN, "its supervisor was lost: its node went down, or it was killed")


def _failed(evidence: Evidence) -> Verdict:
    """By the rank that failed first: what it said, else how it ended."""
    first = first_failing(evidence)
    if first is None:
        return _without_rank(evidence)
    words, status = read_words(first.last_words), first.status
    error = signature(words, _hosts(evidence)) or None
    who, told = f"rank {first.rank} on {first.node} failed first", f"{words.meaning} ({words.line})"
    number = _signal_of(status)
    if words.kind is Kind.STORAGE:
        return _storage(evidence, first, words, error)
    if words.kind is Kind.MACHINE:
        return _verdict(Cause.MACHINE, f"{who}: {told}", rank=first, node=first.node, error=error)
    if status is None and evidence.ended_early:
        return _verdict(Cause.UNKNOWN, "the supervisor ended the ranks, and none had said why it failed")
    if status is None:
        why = f"{who}: it left no word, nor did the program that started it"
        return _verdict(Cause.MACHINE, why, rank=first, node=first.node)
    if number == signal.SIGKILL:
        why = f"{who}: it was killed (SIGKILL): by a person, by the node, or because memory ran out"
        return _verdict(Cause.MACHINE, why, rank=first, node=first.node)
    if number in _CRASHES and words.kind in (Kind.NOTHING, Kind.OWN, Kind.DOUBTFUL):
        name = signal.Signals(number).name
        why = f"{who}: it crashed ({name}){': ' + words.line if words.line else ''}"
        return _verdict(Cause.MACHINE, why, rank=first, node=first.node, error=f"{name} {error or ''}".strip())
    if words.kind is Kind.NOTHING and status in _ENDED_BY_OTHERS:
        said = read_starter(evidence.starter)
        why = f"{who}: it was told to end, and not by its supervisor{': ' + said if said else ''}"
        return _refusing_node(evidence) or _verdict(Cause.UNKNOWN, why, rank=first)
    if words.kind is Kind.FOLLOWED:
        return _verdict(Cause.UNKNOWN, f"{who}, and only noticed that another was lost: {words.line}", rank=first)
    if words.kind is Kind.PASSING:
        return _verdict(Cause.UNKNOWN, f"{who}: {told}", rank=first)
    if words.kind is Kind.DOUBTFUL:
        return _verdict(Cause.MACHINE, f"{who}: {told}", rank=first, node=first.node, error=error)
    last = next((line.strip() for line in reversed(first.last_words) if line.strip()), "")
    last = f"; the last that it said: {last[:200]}" if last else ", and said nothing"
    why = f"{who}: {words.line or f'it ended with status {status}{last}'}{f' ({words.place})' if words.place else ''}"
    return _verdict(Cause.UNKNOWN, why, rank=first, error=error or f"it ended with status {status} and named no error")


def _without_rank(evidence: Evidence) -> Verdict:
    """No rank failed, as far as the records say, and yet the attempt did."""
    said, how = read_starter(evidence.starter), f"the starter ended with status {evidence.status}"
    if (refusing := _refusing_node(evidence)) is not None:
        return refusing
    if not evidence.ranks:
        last = said or next(reversed(evidence.starter), "")
        why = f"no rank was started; {how}{f': {last}' if last else ''}"
        return _verdict(Cause.UNKNOWN, why, error=_error_of_start(said, evidence))
    missing = evidence.world_size - len(evidence.ranks)
    more = f"; {missing} of {evidence.world_size} ranks left no record" if missing else ""
    return _verdict(Cause.UNKNOWN, f"{how}, and no rank failed{more}")


def _refusing_node(evidence: Evidence) -> Verdict | None:
    """A node on which srun could not start its task."""
    node = not_launched(evidence.starter)
    if node not in evidence.attempt.nodes:
        return None
    return _verdict(Cause.MACHINE, f"no rank was started on {node}: {read_starter(evidence.starter)}", node=node)


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
    why = f"storage {f'on {node}' if node else 'of the job'}: {words.meaning} (rank {first.rank}: {words.line})"
    return _verdict(Cause.STORAGE, why, rank=first, node=node, error=error)


def first_failing(evidence: Evidence) -> RankRecord | None:
    """The rank that failed first; None if none failed.

    Clocks of nodes differ, so what ranks say of each other comes before when they ended: the one that most of the
    others name; else, of those with a reason of their own, the one that ended first.
    """
    failed = {rank.rank: rank for rank in evidence.ranks if rank.status != 0}
    names = Counter(named[0] for rank in failed.values() if (named := who_was_lost(rank.last_words)) is not None)
    for number, _ in names.most_common():
        if number in failed and who_was_lost(failed[number].last_words) is None:
            return failed[number]
    # One without an end was lost with what started it: it is not known when, but not after the attempt's end.
    return min(
        failed.values(),
        key=lambda rank: (
            _followed(rank, evidence.ended_early),
            rank.ended or evidence.attempt.ended or rank.began,
            rank.rank,
        ),
        default=None,
    )


def _followed(rank: RankRecord, ended_early: bool) -> int:
    """0: failed by itself; 1: may have; 2: ended because others had, or by the supervisor."""
    if rank.status in _ENDED_BY_OTHERS or rank.status == PREEMPTED or (rank.status is None and ended_early):
        return 2
    if read_words(rank.last_words).kind is Kind.FOLLOWED:
        return 2
    return 1 if rank.status == HUNG else 0


def _hosts(evidence: Evidence) -> set[str]:
    named = (who_was_lost(rank.last_words) for rank in evidence.ranks)
    hosts = {*evidence.attempt.nodes, *(rank.host for rank in evidence.ranks)}
    return hosts | {each[1] for each in named if each is not None}


def _signal_of(status: int | None) -> int:
    """The signal in a status, as `Popen` or as a shell tells it; 0 if there is none."""
    number = 0 if status is None else -status if status < 0 else status - 128
    return number if number in set(signal.Signals) else 0


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
    if verdict.cause not in (Cause.UNKNOWN, Cause.MACHINE) or verdict.error is None or _proven(verdict, evidence):
        return verdict
    before = _same_before(verdict, evidence.attempt, history)
    if len(before) + 1 < same_error:
        return verdict
    first_nodes = {each.verdict.node for each in before if each.verdict is not None and each.verdict.node is not None}
    if verdict.node is not None and first_nodes <= {verdict.node} and len(before) < same_error + 1:
        return verdict
    step = "before any step" if verdict.step is None else f"after step {verdict.step}"
    numbers = ", ".join(str(each.number) for each in before)
    why = (
        f"the same error {step} as in attempt {numbers}, so it is the job's own and no other start fixes it: "
        f"{verdict.error}"
    )
    return verdict.model_copy(update={"cause": Cause.CODE, "node": None, "why": why[:2000]})


def _same_before(verdict: Verdict, attempt: AttemptRecord, history: Sequence[AttemptRecord]) -> list[AttemptRecord]:
    """Earlier attempts that ended with the same error at the same step; before any step, those since the last step."""
    if verdict.step is None:
        trained = [number for number, each in enumerate(history, 1) if each.trained]
        history = history[max(trained, default=0) :]
    others = [each for each in history if each.number != attempt.number and each.verdict is not None]
    found = (verdict.error, verdict.step)
    return [each for each in others if each.verdict and (each.verdict.error, each.verdict.step) == found]


def _proven(verdict: Verdict, evidence: Evidence) -> bool:
    """Whether a machine's fault is beyond doubt."""
    if verdict.node is not None and verdict.node in evidence.faults:
        return True
    lines = next((rank.last_words for rank in evidence.ranks if rank.rank == verdict.rank), [])
    return read_words(lines).kind is Kind.MACHINE
