"""What is decided: a table of cases, from a verdict, what was before it and the nodes at hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from glmforge.config.launch import SupervisorConfig
from glmforge.observe.job_records import AttemptRecord, Cause, Verdict
from glmforge_ops.jobs.supervisor.decide import (
    Decision,
    Do,
    Situation,
    back_off,
    choose_nodes,
    decide,
    failures_in_a_row,
)
from glmforge_ops.jobs.supervisor.nodes import Ledger, Out

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(number: int, cause: Cause, steps: int | None = 0, hours: float = 0.1, node: str = "") -> AttemptRecord:
    """`steps`: made in it; None: nothing is known of steps."""
    return AttemptRecord(
        number=number,
        submission="1",
        nodes=["a", "b"],
        ranks_per_node=1,
        starter="ssh",
        address="a",
        port=1,
        began=NOW - timedelta(hours=hours),
        ended=NOW,
        first_step=100,
        last_step=None if steps is None else 100 + steps,
        verdict=Verdict(cause=cause, why="it failed", node=node or None),
    )


def nothing_made(count: int, cause: Cause = Cause.MACHINE) -> list[AttemptRecord]:
    return [attempt(number, cause) for number in range(1, count + 1)]


def out(name: str) -> Ledger:
    return Ledger(out={name: Out(NOW, "broken")})


def failed(**counts: int) -> Ledger:
    return Ledger({name: dict.fromkeys(range(count), NOW) for name, count in counts.items()})


@dataclass
class Case:
    name: str
    cause: Cause | None
    do: Do
    nodes: str = ""
    """Of a restart."""
    spares: str = ""
    after_s: float | None = None
    exit_code: int | None = None
    says: str = ""
    why: str = "it failed"
    history: Sequence[AttemptRecord] | None = None
    """None: one attempt that made steps."""
    config: dict[str, object] = field(default_factory=dict)
    wanted: int = 2
    present: str | None = "ab"
    ledger: Ledger = field(default_factory=Ledger)
    bears: Callable[[int], bool] = lambda _: True
    requeue: bool = False
    stay: bool = True
    waited_s: float = 0.0


CASES = [
    Case("the first start", None, Do.RESTART, "ab", history=[], says="begins"),
    Case("the first start, with a spare", None, Do.RESTART, "ab", "c", history=[], present="abc"),
    Case("finished", Cause.FINISHED, Do.DONE, exit_code=0),
    Case("finished, though the allocation ends", Cause.FINISHED, Do.DONE, stay=False, requeue=True),
    Case("stopped", Cause.STOPPED, Do.STOP, exit_code=0, requeue=True),
    Case("interrupted", Cause.STOPPED, Do.STOP, exit_code=130, why="interrupted by Ctrl-C"),
    Case("code", Cause.CODE, Do.STOP, exit_code=1, says="fix it", requeue=True),
    Case("code, though the allocation ends", Cause.CODE, Do.STOP, exit_code=1, stay=False, requeue=True),
    # --- gave way
    Case("preempted", Cause.PREEMPTED, Do.REQUEUE, stay=False, requeue=True),
    Case("time limit", Cause.TIME_LIMIT, Do.REQUEUE, stay=False, requeue=True),
    Case("preempted, nobody queues it", Cause.PREEMPTED, Do.STOP, stay=False, exit_code=75, says="resubmit"),
    Case("failed as the allocation ends", Cause.MACHINE, Do.REQUEUE, stay=False, requeue=True),
    Case("never achieves anything as allocations end", Cause.MACHINE, Do.STOP, stay=False, requeue=True,
         history=nothing_made(6), exit_code=1),
    Case("preemption without a step is no failure", Cause.PREEMPTED, Do.REQUEUE, stay=False, requeue=True,
         history=nothing_made(9, Cause.PREEMPTED)),
    # --- started again
    Case("killed after steps: at once", Cause.MACHINE, Do.RESTART, "ab", after_s=0),
    Case("unknown after steps", Cause.UNKNOWN, Do.RESTART, "ab", after_s=0),
    Case("hang", Cause.HANG, Do.RESTART, "ab", after_s=0),
    Case("storage", Cause.STORAGE, Do.RESTART, "ab", after_s=0),
    Case("no step, once", Cause.UNKNOWN, Do.RESTART, "ab", after_s=5, history=nothing_made(1)),
    Case("no step, twice", Cause.UNKNOWN, Do.RESTART, "ab", after_s=10, history=nothing_made(2)),
    Case("no step, five times", Cause.UNKNOWN, Do.RESTART, "ab", after_s=80, history=nothing_made(5)),
    Case("no step, six times", Cause.UNKNOWN, Do.STOP, exit_code=1, says="6 attempts", history=nothing_made(6)),
    Case("the longest back-off", Cause.UNKNOWN, Do.RESTART, "ab", after_s=300, history=nothing_made(9),
         config={"max_restarts": 99}),
    Case("a back-off of thousands", Cause.UNKNOWN, Do.RESTART, "ab", after_s=300, history=nothing_made(2000),
         config={"max_restarts": 9999, "max_restarts_in_all": 9999}),
    Case("steps forgive", Cause.MACHINE, Do.RESTART, "ab", after_s=0,
         history=[*nothing_made(5), attempt(6, Cause.MACHINE, 1)]),
    Case("an hour forgives where steps are not told", Cause.MACHINE, Do.RESTART, "ab", after_s=0,
         history=[*nothing_made(5), attempt(6, Cause.MACHINE, None, hours=1.1)]),
    Case("minutes do not", Cause.MACHINE, Do.STOP, history=[*nothing_made(5), attempt(6, Cause.MACHINE, None)]),
    Case("no restart is wanted", Cause.MACHINE, Do.STOP, history=nothing_made(1), config={"max_restarts": 0}),
    Case("too many in all", Cause.MACHINE, Do.STOP, config={"max_restarts_in_all": 2}, says="3 attempts have failed",
         history=[attempt(n, Cause.MACHINE, 9) for n in (1, 2, 3)]),
    Case("preemptions do not count in all", Cause.MACHINE, Do.RESTART, "ab", config={"max_restarts_in_all": 2},
         history=[attempt(1, Cause.MACHINE, 9), attempt(2, Cause.PREEMPTED, 9), attempt(3, Cause.MACHINE, 9)]),
    # --- nodes
    Case("a node is out: the spare", Cause.MACHINE, Do.RESTART, "ac", present="abc", ledger=out("b")),
    Case("a node has failed: the spare", Cause.MACHINE, Do.RESTART, "ac", "b", present="abc", ledger=failed(b=1)),
    Case("the spare has failed oftener", Cause.MACHINE, Do.RESTART, "ab", "c", present="abc", ledger=failed(b=1, c=2)),
    Case("no spare: the same again", Cause.MACHINE, Do.RESTART, "ab", ledger=failed(b=1)),
    Case("a node is lost: the spare", Cause.NODE_LOST, Do.RESTART, "ac", present="ac"),
    Case("a node is lost: fewer", Cause.NODE_LOST, Do.RESTART, "a", present="a", config={"min_nodes": 1},
         says="on 1 of 2 nodes"),
    Case("the layout does not bear 3", Cause.NODE_LOST, Do.RESTART, "ab", "c", wanted=4, present="abc",
         config={"min_nodes": 1}, bears=lambda n: n in (1, 2, 4)),
    Case("it bears none of them", Cause.NODE_LOST, Do.STOP, wanted=4, present="abc", config={"min_nodes": 3},
         bears=lambda n: n == 4, says="no number of nodes from 3 to 3", waited_s=1e9),
    Case("as many as there are", Cause.PREEMPTED, Do.RESTART, "abc", "d", present="abcd", config={"max_nodes": 3}),
    Case("more, as far as the layout bears it", Cause.PREEMPTED, Do.RESTART, "ab", "c", wanted=2, present="abc",
         config={"max_nodes": 4}, bears=lambda n: n % 2 == 0),
    Case("too few: the scheduler is asked", Cause.NODE_LOST, Do.REQUEUE, present="a", requeue=True, says="asked for"),
    Case("too few, as one is out: the scheduler is asked", Cause.MACHINE, Do.REQUEUE, ledger=out("b"), requeue=True),
    Case("too few: waits", Cause.NODE_LOST, Do.WAIT, present="a", says="needs 2", after_s=1),
    Case("too few: waits longer", Cause.NODE_LOST, Do.WAIT, present="a", waited_s=100, after_s=25),
    Case("too few for too long", Cause.NODE_LOST, Do.STOP, present="a", waited_s=7200, exit_code=1),
    Case("the fourth may come back, and four suit", Cause.NODE_LOST, Do.WAIT, wanted=4, present="abc",
         config={"min_nodes": 3, "node_back_after_s": None}, bears=lambda n: n == 4),
    Case("one is out, and the other may come back", Cause.NODE_LOST, Do.WAIT, present="a", ledger=out("a"),
         config={"min_nodes": 1, "node_back_after_s": None}),
    Case("the one that is out comes back in time", Cause.MACHINE, Do.WAIT, ledger=out("b")),
    Case("the one that is out comes back in hours", Cause.MACHINE, Do.WAIT, ledger=out("b"), waited_s=9000,
         config={"node_back_after_s": 7200}),
    Case("the one that is out does not come back", Cause.MACHINE, Do.STOP, ledger=out("b"), exit_code=1,
         config={"node_back_after_s": None}, says="b is out (broken); 'glmforge jobs allow'"),
    Case("the scheduler does not answer", Cause.MACHINE, Do.WAIT, present=None, requeue=True, after_s=1),
    Case("no node at all", None, Do.WAIT, history=[], present=""),
]  # fmt: skip


def situation(case: Case) -> Situation:
    return Situation(
        config=SupervisorConfig(**case.config),  # type: ignore[arg-type]
        wanted=case.wanted,
        present=None if case.present is None else tuple(case.present),
        bears=case.bears,
        can_requeue=case.requeue,
        may_stay=case.stay,
        waited_s=case.waited_s,
        ledger=case.ledger,
    )


def decided(case: Case) -> Decision:
    history = case.history
    if history is None:
        history = [attempt(1, case.cause or Cause.UNKNOWN, 9)]
    verdict = None if case.cause is None else Verdict(cause=case.cause, why=case.why)
    return decide(verdict, history, NOW, situation(case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_decided(case: Case) -> None:
    decision = decided(case)
    assert decision.do is case.do, decision
    assert case.says in decision.why
    assert (case.why if case.cause is not None else "") in decision.why
    assert ("".join(decision.nodes), "".join(decision.spares)) == (case.nodes, case.spares)
    if case.after_s is not None:
        assert decision.after_s == case.after_s
    if case.exit_code is not None:
        assert decision.exit_code == case.exit_code


def test_attempts_in_a_row() -> None:
    history = [attempt(1, Cause.MACHINE), attempt(2, Cause.PREEMPTED), *nothing_made(3)]
    assert failures_in_a_row(history) == 3
    assert back_off(history, SupervisorConfig(back_off_s=2)) == 8


def test_the_order_of_the_allocation_is_kept() -> None:
    at = Situation(SupervisorConfig(), 2, ("d", "c", "b", "a"), ledger=failed(d=1))
    assert choose_nodes(NOW, at) == (("c", "b"), ("d", "a"))
