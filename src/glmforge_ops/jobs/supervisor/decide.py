"""What to do after an attempt: a decision on a verdict, the job's history and the nodes at hand, and nothing else.

* A job that ended well is done; one that a person stopped stays stopped.
* A failure of the job's own stops it, with the error in the last line that a person reads.
* Everything else is started again, in the same allocation if it has nodes enough, else through the scheduler; sooner
  or later according to whether the attempts made steps.
* A node that has failed gives way to a spare at once, and is out after `node_failures` failures, or when a check
  confirms that it is broken. Fewer nodes are used before none, where the job's layout allows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from glmforge.config.launch import SupervisorConfig
from glmforge.observe.job_records import AttemptRecord, Cause, Verdict
from glmforge_ops.jobs.supervisor.nodes import Ledger

FORGIVEN_AFTER = timedelta(hours=1)
"""An attempt of a program that reports no steps has made some if it lasted as long as that."""

GAVE_WAY = 75
_LONGEST_WAIT_S = 3600.0

_FAILURES = {Cause.MACHINE, Cause.NODE_LOST, Cause.HANG, Cause.STORAGE, Cause.UNKNOWN, Cause.CODE}


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
        present: nodes of the allocation that answer, in its order; None: that cannot be found out now.
        bears: whether the job can run on so many nodes.
        can_requeue: whether the scheduler would take the job again under its number.
        may_stay: the allocation remains the job's; False once it is to be given back.
        waited_s: since the last attempt ended.
        log: file with the output of the rank that failed first, for a person to look at.
    """

    config: SupervisorConfig
    wanted: int
    present: tuple[str, ...] | None
    bears: Callable[[int], bool] = lambda _: True
    can_requeue: bool = False
    may_stay: bool = True
    waited_s: float = 0.0
    log: str = ""
    ledger: Ledger = field(default_factory=Ledger)


def decide(verdict: Verdict | None, history: Sequence[AttemptRecord], now: datetime, at: Situation) -> Decision:
    """What to do after the last attempt of `history`, which ended as `verdict` says; None: none has been made yet.

    The ledger of the situation has the verdict's failure already.
    """
    if verdict is None:
        return _start("the job begins", 0.0, now, at)
    see = f"; see {at.log}" if at.log else ""
    if verdict.cause is Cause.FINISHED:
        return Decision(Do.DONE, verdict.why)
    if verdict.cause is Cause.STOPPED:
        return Decision(Do.STOP, verdict.why, exit_code=130 if "Ctrl-C" in verdict.why else 0)
    if verdict.cause is Cause.CODE:
        return Decision(Do.STOP, f"{verdict.why}{see}; fix it, then 'glmforge jobs resubmit'", exit_code=1)
    if (over := _too_often(history, at.config)) is not None:
        return Decision(Do.STOP, f"{over}; the last: {verdict.why}{see}", exit_code=1)
    if at.may_stay:
        return _start(verdict.why, back_off(history, at.config), now, at)
    if at.can_requeue:
        return Decision(Do.REQUEUE, f"{verdict.why}; the job is queued again")
    return Decision(Do.STOP, f"{verdict.why}; 'glmforge jobs resubmit' resumes it", exit_code=GAVE_WAY)


def failures_in_a_row(history: Sequence[AttemptRecord]) -> int:
    """Attempts at the end that failed and made no step."""
    count = 0
    for attempt in reversed(history):
        if attempt.verdict is None or attempt.verdict.cause not in _FAILURES or not _made_nothing(attempt):
            break
        count += 1
    return count


def _made_nothing(attempt: AttemptRecord) -> bool:
    """Whether an attempt made no training step; where steps are not reported, whether it was short."""
    if attempt.last_step is not None:
        return not attempt.trained
    return attempt.ended is None or attempt.ended - attempt.began < FORGIVEN_AFTER


def back_off(history: Sequence[AttemptRecord], config: SupervisorConfig) -> float:
    """Seconds to wait: none after an attempt that made steps, else doubling with each that did not."""
    count = failures_in_a_row(history)
    # 2 to the power of 60 is longer than any limit.
    return min(config.back_off_s * 2.0 ** min(count - 1, 60), config.max_back_off_s) if count else 0.0


def _too_often(history: Sequence[AttemptRecord], config: SupervisorConfig) -> str | None:
    in_a_row = failures_in_a_row(history)
    failed = sum(each.verdict is not None and each.verdict.cause in _FAILURES for each in history)
    if in_a_row > config.max_restarts:
        return f"{in_a_row} attempts in a row made no step, and supervisor.max_restarts is {config.max_restarts}"
    if failed > config.max_restarts_in_all:
        return f"{failed} attempts have failed, and supervisor.max_restarts_in_all is {config.max_restarts_in_all}"
    return None


def choose_nodes(now: datetime, at: Situation) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Nodes for the next attempt and spares; None if there are too few. Both in the order of the allocation.

    Nodes that have failed come last, so that spares take their place. As many as the job wants; more up to
    `max_nodes`, fewer down to `min_nodes`, as far as it bears the number.
    """
    usable = _usable(at)
    most, least = min(len(usable), at.config.max_nodes or at.wanted), at.config.min_nodes or at.wanted
    count = next((count for count in range(most, least - 1, -1) if at.bears(count)), None)
    if count is None:
        return None
    chosen = set(sorted(usable, key=lambda node: (at.ledger.failures(node, now), usable.index(node)))[:count])
    return tuple(node for node in usable if node in chosen), tuple(node for node in usable if node not in chosen)


def _usable(at: Situation) -> list[str]:
    return [node for node in at.present or () if node not in at.ledger.out]


def _start(why: str, after_s: float, now: datetime, at: Situation) -> Decision:
    wait_s = min(max(1.0, at.waited_s / 4), 30.0)  # short at first: a node that has just gone may be back in a moment
    if at.present is None and at.waited_s < _LONGEST_WAIT_S:
        return Decision(Do.WAIT, f"{why}; waits, since the scheduler does not answer for its nodes", after_s=wait_s)
    if (chosen := choose_nodes(now, at)) is not None:
        nodes, spares = chosen
        fewer = f"; on {len(nodes)} of {at.wanted} nodes" if len(nodes) < at.wanted else ""
        return Decision(Do.RESTART, why + fewer, nodes, spares, after_s)
    lacking = _lacking(at)
    if at.can_requeue:
        return Decision(Do.REQUEUE, f"{why}; {lacking}: the scheduler is asked for others")
    back_s = at.config.node_back_after_s
    may_return = len(at.present or ()) < at.wanted or (at.ledger.out and back_s is not None)
    if may_return and at.waited_s < max(_LONGEST_WAIT_S, 2 * (back_s or 0.0)):
        return Decision(Do.WAIT, f"{why}; {lacking}: waits for nodes", after_s=wait_s)
    return Decision(Do.STOP, f"{why}; {lacking}; 'glmforge jobs allow' takes a node back", exit_code=1)


def _lacking(at: Situation) -> str:
    usable, least = len(_usable(at)), at.config.min_nodes or at.wanted
    count = f"{usable} nodes can be used, and the job needs {least}"
    if usable >= least:
        count = f"no number of nodes from {least} to {usable} suits the run's layout"
    return "; ".join([count, *(f"{name} is out ({each.reason})" for name, each in sorted(at.ledger.out.items())[:4])])
