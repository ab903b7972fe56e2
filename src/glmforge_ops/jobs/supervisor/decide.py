"""What to do after an attempt: a decision on a verdict, the job's history and the nodes at hand, and nothing else.

* What ended well is done; what a person stopped stays stopped.
* A failure of the job's own stops it, with the error in the last line that a person reads.
* Everything else is started again, in the same allocation if it has nodes enough, else through the scheduler; sooner
  or later according to whether the attempts achieve anything.
* A node that has failed gives way to a spare at once, and is out after `node_failures` failures, or when a check
  confirms that it is broken. Fewer nodes are used before none, where the job bears it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from glmforge.config.launch import SupervisorConfig
from glmforge.observe.job_records import AttemptRecord, Cause, Verdict
from glmforge_ops.jobs.supervisor.nodes import Failure, Ledger, Out

FORGIVEN_AFTER = timedelta(hours=1)
"""An attempt of a program that tells no steps has achieved something if it lasted as long as that."""

GAVE_WAY = 75
_LONGEST_WAIT_S = 3600.0

_FAILURES = {Cause.MACHINE, Cause.NODE_LOST, Cause.HANG, Cause.STORAGE, Cause.UNKNOWN, Cause.CODE}
_OF_NODES = {Cause.MACHINE, Cause.HANG, Cause.STORAGE}
"""What counts against the node that a verdict names. A lost node is not there anyway until it answers again; it is
counted all the same, since one that comes and goes is not wanted."""


class Do(StrEnum):
    """What the supervisor does next."""

    DONE = "done"
    STOP = "stop"
    RESTART = "restart"
    REQUEUE = "requeue"
    WAIT = "wait"  # for nodes, and then decide again


@dataclass(frozen=True)
class Decision:
    """What to do, and why in words.

    Attributes:
        nodes, spares: of a restart, in the order of the allocation.
        after_s: to wait before it.
        exit_code: of the supervisor, when the job is done or stopped.
    """

    do: Do
    why: str
    nodes: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    after_s: float = 0.0
    exit_code: int = 0


@dataclass(frozen=True)
class Situation:
    """Where the job stands when it is decided what to do.

    Attributes:
        wanted: nodes that the job asks for (`launch.nodes`).
        present: nodes of the allocation that answer, in its order.
        known: whether that could be found out; where it could not, no start is tried.
        bears: whether the job can run on so many nodes.
        can_requeue: whether the scheduler would take the job again under its number.
        may_stay: the allocation remains the job's; False once it is to be given back.
        waited_s: since the last attempt ended.
        log: file with the output of the rank that failed first, for a person to look at.
    """

    config: SupervisorConfig
    wanted: int
    present: tuple[str, ...]
    bears: Callable[[int], bool] = lambda _: True
    can_requeue: bool = False
    may_stay: bool = True
    waited_s: float = 0.0
    log: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    known: bool = True


def decide(verdict: Verdict | None, history: Sequence[AttemptRecord], now: datetime, at: Situation) -> Decision:
    """What to do after the last attempt of `history`, which ended as `verdict` says; None: none has been made yet.

    The ledger of the situation has the verdict's failure already (`with_failure`).
    """
    if verdict is None:
        return _start("the job begins", 0.0, now, at)
    ended = _ended(verdict, at)
    if ended is not None:
        return ended
    over = _too_often(verdict, history, at)
    if over is not None:
        return over
    if not at.may_stay:
        return _leave(verdict, at)
    return _start(verdict.why, back_off(history, at.config), now, at)


def with_failure(
    verdict: Verdict, attempt: int, ledger: Ledger, config: SupervisorConfig, now: datetime, fault: str = ""
) -> tuple[Ledger, str | None]:
    """The ledger with what the verdict says of a node, and the node that is out since; None if none is.

    An attempt is counted once, however often this is asked.
    `fault` is what a check found wrong with it: that confirms it at once.
    """
    if verdict.node is None or verdict.cause not in {*_OF_NODES, Cause.NODE_LOST}:
        return ledger, None
    name = verdict.node
    if name in ledger.nodes and any(failure.attempt == attempt for failure in ledger.nodes[name].failures):
        return ledger, None
    ledger = ledger.failed(name, Failure(time=now, attempt=attempt, why=verdict.why))
    count = ledger.failures(name, now)
    if config.bad_node == "ignore" or name in ledger.out() or (count < config.node_failures and not fault):
        return ledger, None
    reason = f"a check fails: {fault}" if fault else f"{count} failures, the last: {verdict.why}"
    return ledger.put_out(name, Out(since=now, reason=reason[:2000], drained=config.bad_node == "drain")), name


def made_nothing(attempt: AttemptRecord) -> bool:
    """Whether an attempt made no training step; where steps are not told, whether it was short."""
    if attempt.last_step is not None:
        return not attempt.trained
    return attempt.ended is None or attempt.ended - attempt.began < FORGIVEN_AFTER


def failures_in_a_row(history: Sequence[AttemptRecord]) -> int:
    """Attempts at the end that failed and made no step."""
    count = 0
    for attempt in reversed(history):
        if attempt.verdict is None or attempt.verdict.cause not in _FAILURES or not made_nothing(attempt):
            break
        count += 1
    return count


def back_off(history: Sequence[AttemptRecord], config: SupervisorConfig) -> float:
    """Seconds to wait: none after an attempt that achieved something, else doubling with each that did not."""
    count = failures_in_a_row(history)
    if count == 0:
        return 0.0
    # 2 to the power of 60 is longer than any limit.
    return min(config.back_off_s * 2.0 ** min(count - 1, 60), config.max_back_off_s)


def choose_nodes(now: datetime, at: Situation) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Nodes for the next attempt and spares; None if there are too few. Both in the order of the allocation.

    Nodes that have failed come last, so that spares take their place. As many as the job wants; more up to
    `max_nodes`, fewer down to `min_nodes`, as far as it bears the number.
    """
    out = at.ledger.out()
    usable = [node for node in at.present if node not in out]
    most = min(len(usable), at.config.max_nodes or at.wanted)
    least = at.config.min_nodes or at.wanted
    for count in range(most, least - 1, -1):
        if at.bears(count):
            best = sorted(range(len(usable)), key=lambda place: (at.ledger.failures(usable[place], now), place))
            chosen = set(best[:count])
            nodes = tuple(node for place, node in enumerate(usable) if place in chosen)
            return nodes, tuple(node for place, node in enumerate(usable) if place not in chosen)
    return None


def _ended(verdict: Verdict, at: Situation) -> Decision | None:
    if verdict.cause is Cause.FINISHED:
        return Decision(Do.DONE, verdict.why)
    if verdict.cause is Cause.STOPPED:
        return Decision(Do.STOP, verdict.why, exit_code=130 if "Ctrl-C" in verdict.why else 0)
    if verdict.cause is Cause.CODE:
        return Decision(Do.STOP, f"{verdict.why}{_see(at)}; fix it, then 'glmforge jobs resubmit'", exit_code=1)
    return None


def _leave(verdict: Verdict, at: Situation) -> Decision:
    """When the allocation is to be given back."""
    if at.can_requeue:
        return Decision(Do.REQUEUE, f"{verdict.why}; the job is queued again")
    return Decision(Do.STOP, f"{verdict.why}; 'glmforge jobs resubmit' goes on from there", exit_code=GAVE_WAY)


def _too_often(verdict: Verdict, history: Sequence[AttemptRecord], at: Situation) -> Decision | None:
    in_a_row = failures_in_a_row(history)
    failed = sum(each.verdict is not None and each.verdict.cause in _FAILURES for each in history)
    if in_a_row > at.config.max_restarts:
        why = f"{in_a_row} attempts in a row made no step, and supervisor.max_restarts is {at.config.max_restarts}"
    elif failed > at.config.max_restarts_in_all:
        why = f"{failed} attempts have failed, and supervisor.max_restarts_in_all is {at.config.max_restarts_in_all}"
    else:
        return None
    return Decision(Do.STOP, f"{why}; the last: {verdict.why}{_see(at)}", exit_code=1)


def _see(at: Situation) -> str:
    return f"; see {at.log}" if at.log else ""


def _start(why: str, after_s: float, now: datetime, at: Situation) -> Decision:
    if not at.known and at.waited_s < _LONGEST_WAIT_S:
        return Decision(Do.WAIT, f"{why}; which of its nodes answer cannot be found out now: waits", after_s=_wait(at))
    chosen = choose_nodes(now, at)
    if chosen is not None:
        nodes, spares = chosen
        fewer = f"; on {len(nodes)} of {at.wanted} nodes" if len(nodes) < at.wanted else ""
        return Decision(Do.RESTART, why + fewer, nodes, spares, after_s)
    out = at.ledger.out()
    lacking = _lacking(at, out)
    if at.can_requeue:
        return Decision(Do.REQUEUE, f"{why}; {lacking}: the scheduler is asked for others")
    absent_may_return = len(at.present) < at.wanted
    longest = max(_LONGEST_WAIT_S, 2 * (at.config.node_back_after_s or 0.0))
    out_may_return = bool(out) and at.config.node_back_after_s is not None
    if (absent_may_return or out_may_return) and at.waited_s < longest:
        return Decision(Do.WAIT, f"{why}; {lacking}: waits for nodes", after_s=_wait(at))
    return Decision(Do.STOP, f"{why}; {lacking}; 'glmforge jobs allow' takes a node back", exit_code=1)


def _wait(at: Situation) -> float:
    """Sooner at first: a node that has just gone may be back in a moment."""
    return min(max(1.0, at.waited_s / 4), 30.0)


def _lacking(at: Situation, out: Mapping[str, Out]) -> str:
    usable = [node for node in at.present if node not in out]
    least = at.config.min_nodes or at.wanted
    reasons = "; ".join(f"{name} is out ({each.reason})" for name, each in sorted(out.items())[:4])
    count = f"{len(usable)} nodes can be used, and the job needs {least}"
    if len(usable) >= least:
        count = f"no number of nodes from {least} to {len(usable)} suits the run's layout"
    return f"{count}{f'; {reasons}' if reasons else ''}"
