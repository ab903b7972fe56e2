"""Why an attempt ended: a table of cases, from what the ranks, the run and the nodes left behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from glmforge.observe.job_records import AttemptRecord, Cause, RankRecord, Verdict
from glmforge_ops.jobs.supervisor.evidence import Evidence, RunEvent, Seen
from glmforge_ops.jobs.supervisor.judge import judge

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ("a", "b", "c")

TRACE = ["Traceback (most recent call last):", '  File "/home/u/train.py", line 12, in step', "    x = table['k']"]
KEY_ERROR = [*TRACE, "KeyError: 'k'"]
LOST = "glmforge: rank 2 on b (process 4711) was lost: it ended without a word; rank 0 on a ends with it. Start again"
FAILED_FIRST = "glmforge: rank 3 on b (process 99, Slurm job 7) failed first: KeyError: 'k'; rank 0 on a ends with it."
NO_ANSWER = "glmforge: rank 4 on c (process 8), rank 5 on c (process 9) gave no answer: lost with the machine"
GLOO = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited"


@dataclass
class End:
    """Of a rank: status, seconds after the start (None: no end is written), last words."""

    status: int | None
    at: float = 60.0
    words: Sequence[str] = ()


@dataclass
class Case:
    name: str
    cause: Cause
    ends: Mapping[int, End] = field(default_factory=dict)
    """Of six ranks on three nodes; the others end with 0 at 60 s, or with `others`."""
    others: End | None = None
    status: int | None = 1
    node: str | None = None
    rank: int | None = None
    says: str = ""
    events: Sequence[tuple[str, str]] = ()
    dumps: Mapping[int, bool | None] = field(default_factory=dict)
    """Ranks that wrote where they hang, and whether in a collective."""
    steps: Mapping[int, int] = field(default_factory=dict)
    """Of ranks that have done other steps than `step`."""
    lost: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    signals: Sequence[str] = ()
    seen: Mapping[str, object] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)
    history: Sequence[AttemptRecord] = ()
    step: int | None = 40
    missing: Sequence[int] = ()


def attempt(number: int, step: int | None, verdict: Verdict | None = None, status: int | None = 1) -> AttemptRecord:
    return AttemptRecord(
        number=number,
        submission="1",
        nodes=list(NODES),
        ranks_per_node=2,
        starter="srun",
        address="a",
        port=1,
        began=BEGAN,
        ended=BEGAN + timedelta(minutes=5),
        status=status,
        first_step=0,
        last_step=step,
        verdict=verdict,
    )


def earlier(
    number: int, error: str, step: int | None = 40, node: str | None = None, cause: Cause = Cause.UNKNOWN
) -> AttemptRecord:
    return attempt(number, step, Verdict(cause=cause, why="", error=error, node=node, step=step))


def evidence(case: Case) -> Evidence:
    ends = {rank: case.ends.get(rank, case.others or End(0)) for rank in range(6) if rank not in case.missing}
    ranks = tuple(
        RankRecord(
            rank=rank,
            local_rank=rank % 2,
            node=NODES[rank // 2],
            host=NODES[rank // 2],
            pid=1000 + rank,
            began=BEGAN,
            ended=None if end.status is None else BEGAN + timedelta(seconds=end.at),
            status=end.status,
            last_step=case.steps.get(rank, case.step),
            last_words=list(end.words),
        )
        for rank, end in ends.items()
    )
    events = tuple(RunEvent(name, 40, detail, BEGAN) for name, detail in case.events)
    now = attempt(len(case.history) + 1, case.step, status=case.status)
    told = {"status": case.status, "lost": dict(case.lost), "signals": list(case.signals), **case.seen}
    known = {"dumps": case.dumps, "seen": Seen(**told), "faults": case.faults}  # type: ignore[arg-type]
    return Evidence(now, ranks, events, **{**known, **case.more})  # type: ignore[arg-type]


ALL_WAIT = dict.fromkeys(range(6), True)
KEY_SIGNATURE = "KeyError: 'k'"
CASES = [
    # --- ended as it should
    Case("all well", Cause.FINISHED, status=0, says="status 0"),
    Case("finished, says the run", Cause.FINISHED, status=0, events=[("stopped", "early"), ("finished", "")]),
    Case("stopped by control", Cause.STOPPED, status=0, events=[("stopped", "told to")], says="told to"),
    Case("all gave way", Cause.PREEMPTED, others=End(75), status=75, events=[("preempted", "SIGUSR1 on 6 of 6")],
         says="SIGUSR1 on 6 of 6"),
    Case("gave way, the supervisor told", Cause.PREEMPTED, others=End(75), signals=["USR1"], says="SIGUSR1"),
    Case("cancelled", Cause.STOPPED, others=End(75), signals=["TERM"], more={"still_ours": False}),
    Case("cancelled before a rank was started", Cause.STOPPED, missing=range(6), signals=["TERM"],
         more={"still_ours": False}, says="ended the job"),
    Case("cancelled while a rank failed", Cause.STOPPED, {3: End(1, 50, KEY_ERROR)}, signals=["TERM"],
         more={"still_ours": False}),
    Case("cancelled, and finished nevertheless", Cause.FINISHED, status=0, signals=["TERM"],
         more={"still_ours": False}),
    Case("some ended by TERM while others gave way", Cause.PREEMPTED, {0: End(75), 1: End(-15)}, others=End(75)),
    Case("Ctrl-C", Cause.STOPPED, others=End(130), status=130, says="Ctrl-C"),
    Case("Ctrl-C, some ended by the signal", Cause.STOPPED, {0: End(130), 1: End(-2)}, others=End(130)),
    Case("a rank failed before Ctrl-C", Cause.UNKNOWN, {3: End(1, 50, KEY_ERROR)}, others=End(130), status=130, rank=3),
    Case("failed, and the scheduler asked nothing of it", Cause.UNKNOWN, {3: End(1, 50, KEY_ERROR)}, rank=3,
         more={"still_ours": False}),
    Case("told to end, knows no signal", Cause.PREEMPTED, others=End(-10), signals=["USR1"], says="did not save"),
    Case("told to end, and killed", Cause.STOPPED, others=End(-9), signals=["INT"]),
    Case("a rank failed while others gave way", Cause.UNKNOWN, {3: End(1, 50, KEY_ERROR)}, others=End(75), rank=3),
    # --- a node is gone
    Case("node lost", Cause.NODE_LOST, {4: End(None), 5: End(None)}, others=End(1, 70, [NO_ANSWER]),
         lost={"c": "Slurm says DOWN*"}, node="c", rank=4, says="Slurm says DOWN*"),
    Case("two nodes lost", Cause.NODE_LOST, others=End(1, 70, [GLOO]), lost={"c": "x", "b": "y"}, node="b",
         says="and 1 more"),
    Case("words that name no error", Cause.UNKNOWN, {3: End(1, 50, ["no data in 3", ""])}, rank=3,
         says="it ended with status 1; its last line: no data in 3"),
    Case("no words", Cause.UNKNOWN, {3: End(1, 50)}, rank=3, says="it ended with status 1, and printed nothing"),
    Case("a node of another job is lost", Cause.UNKNOWN, {0: End(1, 5, KEY_ERROR)}, lost={"z": "x"}, rank=0),
    Case("a node of another job is lost as well", Cause.NODE_LOST, others=End(1, 70, [GLOO]),
         lost={"c": "gone", "z": "x"}, node="c", says="node c was lost: gone"),
    Case("node lost, and the others hung for it", Cause.NODE_LOST, others=End(124), lost={"c": "gone"}, node="c",
         dumps=dict.fromkeys(range(4), True)),
    Case("node lost, but all had finished", Cause.FINISHED, status=0, lost={"c": "x"}),
    # --- hangs
    Case("a rank was stopped", Cause.HANG, others=End(124), dumps={r: True for r in range(6) if r != 3}, node="b",
         rank=3, says="it alone wrote nothing", status=124),
    Case("a rank is outside", Cause.HANG, others=End(124), rank=4, node="c", says="in no collective",
         dumps=ALL_WAIT | {4: False}),
    Case("a rank has done fewer steps", Cause.HANG, others=End(124), rank=1, node="a", says="had done 39 steps",
         dumps=dict.fromkeys(range(6)), steps={1: 39}),
    Case("nobody stands out", Cause.HANG, others=End(124), dumps=ALL_WAIT, says="no rank stands"),
    Case("124 alone", Cause.HANG, others=End(124), says="status 124"),
    Case("hang, says the run", Cause.HANG, others=End(124), events=[("hang", "no sign of life for 60 s")], says="60 s"),
    Case("silent, ended by us", Cause.HANG, others=End(-9), seen={"silent_s": 99.0, "ended_early": True}, says="99 s"),
    Case("one had failed before the others hung", Cause.UNKNOWN, {3: End(1, 5, KEY_ERROR)}, others=End(124), rank=3,
         dumps={r: True for r in range(6) if r != 3}),
    Case("one had failed, and its node's clock is ahead", Cause.UNKNOWN, {3: End(1, 90, KEY_ERROR)}, others=End(124),
         rank=3),
    Case("one was killed before the others hung", Cause.MACHINE, {2: End(-9, 50)}, others=End(124), rank=2, node="b"),
    Case("hang of a node that fails a check", Cause.MACHINE, others=End(124), node="b", rank=2, faults={"b": "Xid 79"},
         dumps=ALL_WAIT | {2: False}, says="Xid 79"),
    # --- who failed first
    Case("killed, the others noticed", Cause.MACHINE, {2: End(-9, 50)}, others=End(1, 52, [LOST]), node="b", rank=2,
         says="was killed"),
    Case("killed, and its node's clock is ahead", Cause.MACHINE, {2: End(-9, 500)}, others=End(1, 52, [LOST]), node="b",
         rank=2),
    Case("named by the others as the first", Cause.UNKNOWN, {3: End(1, 500, KEY_ERROR)}, rank=3, says="KeyError: 'k'",
         others=End(1, 52, [FAILED_FIRST])),
    Case("the one that most of the others name", Cause.MACHINE, {2: End(-9, 500), 3: End(-9, 400),
         5: End(1, 52, [FAILED_FIRST])}, others=End(1, 52, [LOST]), rank=2),
    Case("the one that is named names another", Cause.UNKNOWN, {2: End(1, 60, [FAILED_FIRST]),
         3: End(1, 61, KEY_ERROR)}, others=End(1, 52, [LOST]), rank=3),
    Case("own error before broken connections", Cause.UNKNOWN, {5: End(1, 61, KEY_ERROR)}, others=End(1, 60, [GLOO]),
         rank=5, says="rank 5 on c failed first"),
    Case("NCCL noticed", Cause.UNKNOWN, {5: End(1, 61, KEY_ERROR)}, others=End(-6, 60, [NCCL]), rank=5),
    Case("only broken connections", Cause.UNKNOWN, others=End(1, 60, [GLOO]), rank=0, says="only noticed"),
    Case("ended by the starter", Cause.MACHINE, {1: End(-9, 50)}, others=End(-15, 40), node="a", rank=1),
    Case("without an end", Cause.MACHINE, {1: End(None)}, others=End(1, 60, [GLOO]), node="a", rank=1, says="left no"),
    Case("without an end, and one killed before", Cause.MACHINE, {1: End(None), 3: End(-9, 50)}, rank=3, node="b",
         others=End(1, 60, [GLOO])),
    Case("without an end, as we ended it", Cause.UNKNOWN, {1: End(None), 4: End(1, 5, KEY_ERROR)}, rank=4,
         others=End(None), seen={"ended_early": True}),
    # --- what it failed of
    Case("no space left", Cause.STORAGE, others=End(1, 60, ["OSError: [Errno 28] No space left on device"]),
         says="of the job"),
    Case("no space left on one node", Cause.STORAGE, {2: End(1, 50, ["OSError: No space left on device"])},
         others=End(1, 60, [GLOO]), node="b", rank=2),
    Case("stale mount", Cause.STORAGE, {2: End(1, 5, ["OSError: [Errno 116] Stale file handle: '/runs'"])}, node="b"),
    Case("storage not mounted", Cause.STORAGE, says="not mounted", others=End(
        1, 5, ["glmforge: /runs/a/checkpoints: broken link to /mnt/x; mount it, or remove the link"])),
    Case("damaged checkpoint", Cause.STORAGE, {0: End(1, 5, ["glmforge: /r/step-00000010: is damaged (checksum)"])}),
    Case("a node on which srun starts nothing", Cause.MACHINE, {1: End(-15)}, node="c", missing=[0, 2, 3, 4, 5],
         more={"starter": ("srun: error: Task launch for StepId=2.1 failed on node c: Unspecified error",
                           "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")},
         history=[], says="Unspecified error"),
    Case("killed after one was skipped", Cause.MACHINE, {0: End(-9, 50, [
        "WARNING  /r/step-00000010 is incomplete and is skipped:", "         it is damaged"])}, node="a", rank=0),
    Case("ECC", Cause.MACHINE, {2: End(1, 5, ["RuntimeError: CUDA error: uncorrectable ECC error encountered"])},
         node="b", rank=2, says="a GPU is broken"),
    Case("GPU fell off", Cause.MACHINE, {2: End(1, 5, ["NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus"])},
         node="b"),
    Case("no device", Cause.MACHINE, {2: End(1, 5, ["RuntimeError: No CUDA-capable device is detected"])}, node="b"),
    Case("no memory", Cause.MACHINE, {2: End(1, 5, ["OSError: [Errno 12] Cannot allocate memory"])}, node="b"),
    Case("illegal access", Cause.MACHINE, {2: End(1, 5, ["RuntimeError: CUDA error: an illegal memory access"])},
         node="b", says="computation on a GPU failed"),
    Case("segmentation fault", Cause.MACHINE, {2: End(-11, 5)}, others=End(1, 60, [GLOO]), node="b", says="SIGSEGV"),
    Case("segmentation fault, as a shell has it", Cause.MACHINE, {2: End(139, 5)}, node="b", says="SIGSEGV"),
    Case("port taken", Cause.UNKNOWN, {0: End(1, 5, ["OSError: [Errno 98] Address already in use"])}, says="port"),
    Case("an earlier start had not ended", Cause.UNKNOWN, says="had not ended", others=End(
        1, 5, ["glmforge: /runs/a: in use by 'glmforge train' on n1 (process 5), since x, last heartbeat y; wait"])),
    Case("own error, once", Cause.UNKNOWN, others=End(1, 60, KEY_ERROR), rank=0, says="KeyError: 'k'"),
    Case("own error on a node that fails a check", Cause.MACHINE, {3: End(1, 5, KEY_ERROR)}, faults={"b": "Xid 48"},
         node="b", rank=3, says="Xid 48"),
    Case("without a word", Cause.UNKNOWN, {3: End(7, 5, ["step 3", "step 4"])}, rank=3, says="status 7"),
    Case("no rank was started", Cause.UNKNOWN, missing=range(6), status=1, says="no rank was started"),
    Case("no rank was started, and srun says why", Cause.UNKNOWN, missing=range(6), status=1,
         more={"starter": ("srun: error: Unable to create step",)}, says="status 1: srun: error: Unable to create"),
    Case("the starter failed", Cause.UNKNOWN, status=2, missing=[5], says="1 of 6 ranks left no record"),
    Case("supervisor lost", Cause.UNKNOWN, others=End(-15), status=None, more={"orphaned": True}, says="supervisor"),
    Case("supervisor lost, and a rank without an end", Cause.UNKNOWN, {1: End(None)}, others=End(-15), status=None,
         more={"orphaned": True}, says="supervisor"),
    Case("supervisor lost with its node", Cause.NODE_LOST, others=End(-15), status=None, more={"orphaned": True},
         lost={"a": "gone"}, node="a"),
    Case("supervisor lost after an error", Cause.UNKNOWN, {1: End(1, 5, KEY_ERROR)}, others=End(-15), status=None,
         more={"orphaned": True}, rank=1, says="KeyError"),
    # --- the same error again
    Case("same error, same step", Cause.CODE, others=End(1, 60, KEY_ERROR), history=[earlier(1, KEY_SIGNATURE)],
         says="after step 40 as in attempt 1"),
    Case("same error before any step", Cause.CODE, others=End(1, 60, KEY_ERROR), step=None,
         history=[earlier(1, KEY_SIGNATURE, None)], says="before any step"),
    Case("same error, other step", Cause.UNKNOWN, others=End(1, 60, KEY_ERROR), history=[earlier(1, KEY_SIGNATURE, 9)]),
    Case("other error, same step", Cause.UNKNOWN, others=End(1, 60, KEY_ERROR), history=[earlier(1, "TypeError")]),
    Case("same error with a kill between", Cause.CODE, others=End(1, 60, KEY_ERROR),
         history=[earlier(1, KEY_SIGNATURE), attempt(2, 44, Verdict(cause=Cause.MACHINE, why="", node="b"))]),
    Case("same error of a broken node", Cause.MACHINE, {3: End(1, 5, KEY_ERROR)}, faults={"b": "Xid 48"}, node="b",
         history=[earlier(1, KEY_SIGNATURE)]),
    Case("same error on another node that fails a check", Cause.MACHINE, {3: End(1, 5, KEY_ERROR)}, node="b",
         faults={"b": "Xid 48"}, history=[earlier(1, KEY_SIGNATURE, node="a", cause=Cause.MACHINE)]),
    Case("its own record is no other attempt", Cause.UNKNOWN, others=End(1, 60, KEY_ERROR),
         history=[earlier(2, KEY_SIGNATURE)]),
    Case("crash on the same node again", Cause.MACHINE, {2: End(-11, 5)}, node="b",
         history=[earlier(1, "it crashed with SIGSEGV", node="b", cause=Cause.MACHINE)]),
    Case("crash on another node", Cause.CODE, {2: End(-11, 5)},
         history=[earlier(1, "it crashed with SIGSEGV", node="a", cause=Cause.MACHINE)]),
    Case("crash on one node again and again", Cause.CODE, {2: End(-11, 5)}, history=[
        earlier(n, "it crashed with SIGSEGV", node="b", cause=Cause.MACHINE) for n in (1, 2, 3)]),
    Case("killed again at the same step", Cause.MACHINE, {2: End(-9, 5)}, node="b",
         history=[earlier(1, "", node="b", cause=Cause.MACHINE)]),
    Case("ECC again is no code", Cause.MACHINE, {2: End(1, 5, ["uncorrectable ECC error"])}, node="b",
         history=[earlier(1, "uncorrectable ECC error", node="a", cause=Cause.MACHINE)]),
    Case("full disk again is no code", Cause.STORAGE, others=End(1, 5, ["OSError: No space left on device"]),
         history=[earlier(1, "OSError: No space left on device", cause=Cause.STORAGE)]),
    Case("lost peers again are no code", Cause.UNKNOWN, others=End(1, 60, [GLOO]),
         history=[earlier(1, "RuntimeError: [../gloo/transport/tcp/pair.cc:<rank>]")]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_why(case: Case) -> None:
    verdict = judge(evidence(case), case.history)
    assert verdict.cause is case.cause, verdict
    assert case.says in verdict.why
    if case.node is not None or case.cause is Cause.CODE:
        assert verdict.node == case.node
    if case.rank is not None:
        assert verdict.rank == case.rank


def test_an_own_error_blames_no_node() -> None:
    assert judge(evidence(Case("", Cause.UNKNOWN, others=End(1, 60, KEY_ERROR)))).node is None


def test_a_damaged_checkpoint_blames_no_node() -> None:
    """Whoever read it."""
    ends = {2: End(1, 5, ["glmforge: /r/step-00000010: is damaged (checksum)"])}
    assert judge(evidence(Case("", Cause.STORAGE, ends))).node is None


def test_an_error_before_any_step_is_the_same_only_if_none_trained_since() -> None:
    case, trained = Case("", Cause.CODE, others=End(1, 60, KEY_ERROR), step=None), attempt(2, 400)
    only_loaded, before = trained.model_copy(update={"first_step": 400}), earlier(1, KEY_SIGNATURE, None)
    for history, cause in (
        ([before], Cause.CODE),
        ([before, trained], Cause.UNKNOWN),
        ([before, only_loaded], Cause.CODE),
    ):
        assert judge(evidence(replace(case, history=history)), history).cause is cause


def test_to_be_told_to_end_twice_is_no_error_of_the_code() -> None:
    case = Case("", Cause.UNKNOWN, {1: End(-15)}, missing=[0, 2, 3, 4, 5])
    first = judge(evidence(case))
    assert first.error is None
    again = replace(case, history=[attempt(1, None, first), attempt(2, None, first)])
    assert judge(evidence(again), again.history).cause is Cause.UNKNOWN


def test_names_of_hosts_are_no_difference() -> None:
    """Neither those that ranks have of their machines, nor those by which others name them."""

    def error(host: str) -> str | None:
        lost = f"glmforge: rank 3 on {host}-ib (process 9) failed first: x; rank 0 on a ends with it."
        ends = {3: End(1, 50, [f"OSError: {host}.cluster has no route to {host}-ib"])}
        found = evidence(Case("", Cause.UNKNOWN, ends, others=End(1, 60, [lost])))
        ranks = tuple(rank.model_copy(update={"host": f"{host}.cluster"}) for rank in found.ranks)
        return judge(replace(found, ranks=ranks)).error

    assert error("node17") == error("node4")
