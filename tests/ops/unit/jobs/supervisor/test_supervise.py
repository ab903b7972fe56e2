"""The loop with ranks that end as told: what is decided, what is written down, and that another supervisor goes on."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from glmforge.observe.job_records import SUPERVISOR_LEASE, AttemptRecord, Cause, JobDirectory
from glmforge.observe.record_files import RunFileError
from glmforge.runtime.lease import HeldError, Lease
from glmforge_ops.jobs.supervisor.nodes import Ledger, allow
from glmforge_ops.jobs.supervisor.supervise import LEASE_S, Supervisor
from helpers.fake_starter import Ends, FakeAllocation, FakeStarter, Script, a_job

KILLED = Ends(-9, ["step 3"])
ERROR = Ends(
    1,
    ["Traceback (most recent call last):", '  File "train.py", line 7, in step', "KeyError: 'x'"],
    step=3,
)


def supervise(
    job: JobDirectory, script: Script, nodes: tuple[str, ...] = ("a", "b"), **place: object
) -> tuple[int, FakeStarter, FakeAllocation]:
    starter, allocation = FakeStarter(script), FakeAllocation(nodes, **place)  # type: ignore[arg-type]
    return Supervisor(job, starter, allocation, wait_s=0.0).run(), starter, allocation


def events(job: JobDirectory, name: str) -> list[dict[str, object]]:
    return [event for event in job.read_events() if event["event"] == name]


def test_a_job_that_finishes(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)
    status, starter, _ = supervise(job, lambda ranks, number: {})
    assert status == 0
    assert starter.nodes == ["ab"]
    (attempt,) = job.read_attempts()
    assert attempt.verdict is not None
    assert attempt.verdict.cause is Cause.FINISHED
    assert [event["do"] for event in events(job, "decided")] == ["restart", "done"]
    assert [event["nodes"] for event in events(job, "attempt started")] == [["a", "b"]]


def test_an_error_of_the_code_stops_it_at_the_second_attempt(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)
    status, starter, _ = supervise(job, lambda ranks, number: {0: ERROR, 1: ERROR})
    assert status == 1
    assert len(starter.started) == 2
    why = events(job, "decided")[-1]["why"]
    assert isinstance(why, str)
    for part in ("same error after step 3", "KeyError: 'x'", "attempts/0002/rank-00000.log"):
        assert part in why


def test_a_spare_takes_the_place_of_a_node_that_failed(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2, supervisor={"spare_nodes": 1})
    status, starter, _ = supervise(job, lambda ranks, number: {1: KILLED} if number == 1 else {}, ("a", "b", "c"))
    assert status == 0
    assert starter.nodes == ["ab", "ac"]


def test_a_node_that_fails_thrice_is_out(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2, supervisor={"min_nodes": 1, "max_restarts": 9})

    def script(ranks: object, number: int) -> dict[int, Ends]:
        nodes = ranks.nodes  # type: ignore[attr-defined]
        return {nodes.index("b"): Ends(-9, step=number)} if "b" in nodes else {}

    status, starter, _ = supervise(job, script)
    assert status == 0
    assert starter.nodes == ["ab"] * 3 + ["a"]
    assert "3 failures" in Ledger.read(job).out["b"].reason
    assert allow(job, ["b"]) == ["b"]
    assert not Ledger.read(job).out


def test_attempts_in_a_row_that_make_no_step_are_bounded(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2, supervisor={"max_restarts": 4, "bad_node": "ignore"})
    status, starter, _ = supervise(job, lambda ranks, number: {number % 2: KILLED})
    assert status == 1
    assert len(starter.started) == 5


def test_a_scheduler_is_asked_for_other_nodes(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)
    place = {"can_requeue": True, "is_given": True, "gone": {"b": "Slurm says DOWN*"}}
    status, starter, allocation = supervise(job, lambda ranks, number: {}, **place)
    assert status == 0
    assert not starter.started
    assert allocation.requeued == [[]]
    status, starter, _ = supervise(job, lambda ranks, number: {}, ("a", "c"), restart=1, can_requeue=True)
    assert status == 0
    assert starter.nodes == ["ac"]


def test_ranks_that_gave_way_under_a_scheduler_lead_to_a_requeue(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)
    gave_way = {0: Ends(75, step=5), 1: Ends(75, step=5)}
    status, _, allocation = supervise(job, lambda ranks, number: gave_way, can_requeue=True, is_given=True)
    assert status == 0
    assert allocation.requeued == [[]]
    assert events(job, "verdict")[-1]["cause"] == "preempted"


def test_what_an_earlier_start_was_told_is_done(tmp_path: Path) -> None:
    """Its ranks gave way, and its supervisor was killed before it wrote that down."""
    job = a_job(tmp_path, nodes=2)
    gave_way = {0: Ends(75, step=5), 1: Ends(75, step=5)}
    supervise(job, lambda ranks, number: gave_way, can_requeue=True, is_given=True)
    record = job.attempt(1).record
    AttemptRecord.model_validate_json(record.read_text()).model_copy(update={"verdict": None}).write(record)
    place = {"can_requeue": True, "is_given": True, "restart": 1}
    status, starter, allocation = supervise(job, lambda ranks, number: {}, **place)
    assert (status, len(starter.started), allocation.requeued) == (0, 1, [])


def test_what_was_queued_again_waits_for_a_supervisor_that_still_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node that was only cut off. To end with an error would end the job."""
    job = a_job(tmp_path, nodes=2)
    waited = list[float]()
    with ExitStack() as other:
        other.enter_context(Lease(job.root, "another", name=SUPERVISOR_LEASE))

        def wait(supervisor: Supervisor, seconds: float) -> bool:
            waited.append(seconds)
            other.close()
            return True

        monkeypatch.setattr(Supervisor, "_wait", wait)
        status, starter, _ = supervise(job, lambda ranks, number: {}, is_given=True, restart=1)
    assert (status, len(starter.started)) == (0, 1)
    assert waited[0] == LEASE_S


def test_what_the_scheduler_has_queued_again_is_not_started_here_any_more(tmp_path: Path) -> None:
    """Nobody told this supervisor: its node was cut off, or the controller was down."""
    job, allocation = a_job(tmp_path, nodes=2), FakeAllocation(("a", "b"), can_requeue=True, is_given=True)

    def killed_meanwhile(ranks: object, number: int) -> dict[int, Ends]:
        allocation.again = True
        return {1: KILLED}

    starter = FakeStarter(killed_meanwhile)
    assert Supervisor(job, starter, allocation, wait_s=0.0).run() == 0
    assert len(starter.started) == 1
    assert allocation.requeued == [[]]
    assert [event["do"] for event in events(job, "decided")] == ["restart", "requeue"]


def test_a_requeue_leaves_out_what_a_person_has_left_out_and_the_nodes_that_are_out(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2, exclude=["z"], supervisor={"node_failures": 1})
    place = {"can_requeue": True, "is_given": True}
    _, _, allocation = supervise(job, lambda ranks, number: {1: KILLED}, **place)
    assert allocation.requeued == [["b", "z"]]


def test_a_job_that_is_cancelled_is_not_queued_again(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)
    gave_way = {0: Ends(75, step=5), 1: Ends(75, step=5)}
    place = {"can_requeue": True, "is_given": True, "ours": False}
    status, _, allocation = supervise(job, lambda ranks, number: gave_way, **place)
    assert status == 0
    assert not allocation.requeued
    assert events(job, "decided")[-1]["do"] == "stop"


def test_a_supervisor_finishes_what_another_left(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)

    def breaks_down(ranks: object, number: int) -> dict[int, Ends]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(job, breaks_down)
    assert job.read_attempts()[0].verdict is None
    status, starter, _ = supervise(job, lambda ranks, number: {})
    assert status == 0
    assert len(starter.started) == 1
    causes = [attempt.verdict.cause for attempt in job.read_attempts() if attempt.verdict is not None]
    assert causes == [Cause.UNKNOWN, Cause.FINISHED]


def test_no_attempt_is_wasted_while_the_scheduler_is_down(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)
    place = {"is_given": True, "down": range(2, 12)}
    status, starter, _ = supervise(job, lambda ranks, number: {1: KILLED} if number == 1 else {}, **place)
    assert status == 0
    assert len(starter.started) == 2
    assert [event["do"] for event in events(job, "decided")] == ["restart", "wait", "restart", "done"]
    assert len(events(job, "nodes unknown")) == 1


def test_two_supervisors_of_a_job_are_told_apart(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=2)
    with Lease(job.root, "another", name=SUPERVISOR_LEASE), pytest.raises(HeldError, match="in use by 'another'"):
        supervise(job, lambda ranks, number: {})


def test_a_node_is_drained_with_a_reason_where_that_is_wanted(tmp_path: Path) -> None:
    job = a_job(tmp_path, nodes=1, supervisor={"bad_node": "drain", "node_failures": 1, "max_restarts": 9})
    place = {"is_given": True}
    _, _, allocation = supervise(job, lambda ranks, number: {0: KILLED} if number == 1 else {}, **place)
    assert "1 failures, the last: rank 0 on a failed first" in allocation.drained["a"]


def test_each_attempt_has_a_port_of_its_own_but_for_one_that_was_given(tmp_path: Path) -> None:
    """The last one's may still be held."""
    _, starter, _ = supervise(a_job(tmp_path), lambda ranks, number: {0: KILLED} if number == 1 else {})
    first, second = (ranks.port for ranks in starter.started)
    assert first != second
    _, starter, _ = supervise(a_job(tmp_path / "given", port=4711), lambda ranks, number: {})
    assert starter.started[0].port == 4711


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RunFileError("attempt.json: No space left")])
def test_a_disk_that_takes_no_record_is_tried_again_with_back_off_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    job = a_job(tmp_path, nodes=2, supervisor={"max_restarts": 3, "back_off_s": 5})
    monkeypatch.setattr(AttemptRecord, "write", refuse)
    status, starter, _ = supervise(job, lambda ranks, number: {})
    assert (status, starter.started) == (1, [])
    decided = events(job, "decided")
    assert [event["after_s"] for event in decided] == [0.0, 5.0, 10.0, 20.0, 0.0]
    assert "No space left" in str(decided[-1]["why"])
