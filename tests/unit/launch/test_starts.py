"""Which starts count as refused, and what is done about them: never about an end that the job has earned."""

from pathlib import Path
from typing import Any

import pytest

from glmforge.launch.job import AttemptRecord
from glmforge.launch.schedulers.base import Seen, State
from glmforge.launch.starts import Mend, is_refused, mending, refused_in_a_row, starts_of
from helpers.made_jobs import made_attempt, made_job

HELD = "launch failed requeued held"


def started(restart: int = 0) -> dict[str, Any]:
    return {"event": "supervisor started", "submission": "17", "restart": restart}


def event(name: str) -> dict[str, Any]:
    return {"event": name, "submission": "17"}


def do(
    state: State,
    reason: str = "",
    *,
    events: list[dict[str, Any]] | None = None,
    attempts: list[AttemptRecord] | None = None,
    restarts: int = 0,
    cancelled: bool = False,
) -> Mend:
    seen = Seen("17", state, reason, restarts=restarts)
    return mending(seen, events or [], attempts or [], 2, cancelled=cancelled).do


@pytest.mark.parametrize("state", [State.FAILED, State.NODE_FAILED])
def test_a_start_of_which_nothing_was_heard_is_tried_again(state: State) -> None:
    assert do(state, "NonZeroExitCode") is Mend.REQUEUE
    assert do(state, events=[started(0)], restarts=1) is Mend.REQUEUE


def test_a_start_that_got_as_far_as_a_supervisor_has_earned_its_end(tmp_path: Path) -> None:
    assert do(State.FAILED, events=[started()]) is Mend.NOTHING
    assert do(State.FAILED, events=[started(0), started(1)], restarts=1) is Mend.NOTHING
    attempt = made_attempt(made_job(tmp_path))
    assert do(State.FAILED, attempts=[attempt]) is Mend.NOTHING


@pytest.mark.parametrize(
    "state", [State.COMPLETED, State.CANCELLED, State.TIME_LIMIT, State.OUT_OF_MEMORY, State.ENDED]
)
def test_other_ends_are_no_refusals(state: State) -> None:
    assert do(state) is Mend.NOTHING


@pytest.mark.parametrize("state", [State.FAILED, State.HELD])
def test_what_was_cancelled_stays_so(state: State) -> None:
    assert do(state, HELD, cancelled=True) is Mend.NOTHING


@pytest.mark.parametrize("reason", [HELD, "JobHoldMaxRequeue"])
def test_slurms_own_hold_is_released(reason: str) -> None:
    assert do(State.HELD, reason, events=[started()]) is Mend.RELEASE


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "job requeued in held state", ""])
def test_the_hold_of_a_person_is_left(reason: str) -> None:
    assert do(State.HELD, reason) is Mend.LOOK_AGAIN


@pytest.mark.parametrize("state", [State.WAITING, State.RUNNING, State.SUSPENDED])
def test_a_job_that_waits_or_runs_is_looked_at_again(state: State) -> None:
    assert do(state) is Mend.LOOK_AGAIN


def test_a_job_of_which_slurm_tells_nothing_is_left() -> None:
    assert do(State.UNKNOWN, "no such job") is Mend.NOTHING


@pytest.mark.parametrize("state", [State.FAILED, State.HELD])
def test_it_is_given_up_after_too_many_in_a_row(state: State) -> None:
    once, twice = [event("start refused")], [event("start refused"), event("hold released")]
    assert do(state, HELD, events=once) in (Mend.REQUEUE, Mend.RELEASE)
    assert do(state, HELD, events=twice) is Mend.GIVE_UP
    assert do(state, HELD, events=[*twice, started(2)], restarts=3) in (Mend.REQUEUE, Mend.RELEASE)


@pytest.mark.parametrize("name", ["submitted", "submitted again", "supervisor started"])
def test_refusals_are_counted_anew(name: str) -> None:
    assert refused_in_a_row([event("start refused"), event("hold released"), event("requeued")]) == 2
    assert refused_in_a_row([event("start refused"), event(name)]) == 0


def test_supervisors_that_began_are_found_in_damaged_events(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    assert starts_of(events) == frozenset()
    events.write_bytes(
        b'{"event": "supervisor started", "submission": "17", "restart": 1}\n'
        b'{"event": "supervisor started", "submission": 17, "restart": 2}\n'
        b'{"event": "note", "detail": "supervisor started", "submission": "17", "restart": 3}\n'
        b'\xff\n{"event": "supervisor started", "submission": "17", "rest'
    )
    assert starts_of(events) == {("17", 1)}


def test_a_supervisor_of_an_earlier_start_says_nothing_of_the_last() -> None:
    seen = Seen("17", State.FAILED, restarts=2)
    assert is_refused(seen, {("17", 1), ("16", 2)}, [None])
    assert not is_refused(seen, {("17", 2)}, [None])
