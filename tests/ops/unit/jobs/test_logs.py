"""Logs of ranks: which one is meant, in which order lines come, and a job that is followed over its attempts."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.observe.job_records import AttemptDirectory, Cause, JobDirectory
from glmforge_ops.jobs.logs import first_to_fail, follow, lines_of, logs_of, scheduler_logs
from glmforge_ops.jobs.registry import Job, find_jobs
from glmforge_ops.jobs.schedulers.base import State
from helpers.made_jobs import MadeScheduler, at, made_attempt, made_job, made_rank


def line(second: int, rank: int, text: str) -> str:
    return f"2026-03-01T12:00:{second:02d}.000000Z {rank} - {text}"


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    """Two attempts of four ranks; in the second, rank 2 fails first, and the others after it."""
    job = made_job(tmp_path / "jobs")
    made_attempt(job, 1, cause=Cause.PREEMPTED)
    made_attempt(job, 2, cause=Cause.UNKNOWN)
    for rank in range(4):
        made_rank(job, 1, rank, lines=[line(rank, rank, "first attempt")], status=75, ended=at(90))
        lines = [line(10 + rank, rank, "step 1"), line(20 - rank, rank, "step 2")]
        made_rank(job, 2, rank, lines=lines, status=1, ended=at(100 if rank == 2 else 101))
    return job


def texts(job: JobDirectory, **chosen: object) -> list[str]:
    return list(lines_of(logs_of(job, **chosen)))  # type: ignore[arg-type]


def test_the_rank_that_failed_first_is_meant(job: JobDirectory) -> None:
    assert texts(job) == [line(12, 2, "step 1"), line(18, 2, "step 2")]


def test_the_verdict_knows_better(job: JobDirectory) -> None:
    made_attempt(job, 2, cause=Cause.MACHINE, verdict={"rank": 3})
    assert [log.name for log in logs_of(job)] == ["rank-00003.log"]


def test_where_none_failed_rank_0_is_meant(job: JobDirectory) -> None:
    assert [log.name for log in logs_of(job, attempt=1)] == ["rank-00000.log"]


def test_a_rank_that_was_ended_by_others_did_not_fail_first(job: JobDirectory) -> None:
    made_rank(job, 2, 1, status=-15, ended=at(50))
    assert first_to_fail(job.attempt(2)) == 2


def test_a_record_that_was_cut_hides_no_other(job: JobDirectory) -> None:
    job.attempt(2).rank(0).write_text('{"rank": 0, "loc')
    assert first_to_fail(job.attempt(2)) == 2


def test_all_ranks_in_the_order_of_time(job: JobDirectory) -> None:
    lines = texts(job, attempt=2, every=True)
    assert len(lines) == 8
    assert lines == sorted(lines)


def test_what_is_chosen(job: JobDirectory) -> None:
    assert texts(job, attempt=1, rank=3) == [line(3, 3, "first attempt")]
    chosen = logs_of(job, every=True)
    assert list(lines_of(chosen, 2)) == [line(19, 1, "step 2"), line(20, 0, "step 2")]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [({"attempt": 7}, "there is no attempt 7; there are 1-2"), ({"rank": 9}, "there is no rank 9; there are 0-3")],
)
def test_what_is_not_there(job: JobDirectory, chosen: dict[str, int], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        texts(job, **chosen)


def test_no_attempt_yet(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    with pytest.raises(LaunchError, match="no attempt has begun"):
        texts(job)
    with pytest.raises(LaunchError, match="there is no such log"):
        scheduler_logs(job)
    (job.root / "scheduler-17.log").write_text("prolog failed\n")
    assert list(lines_of(scheduler_logs(job))) == ["prolog failed"]


def test_hostile_bytes_are_shown_not_obeyed(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    made_attempt(job)
    made_rank(job, 1, 0)
    job.attempt(1).log(0).write_bytes(b"2026 \xff\xfe\x00\r\n")
    assert texts(job) == ["2026 \\xff\\xfe\x00"]


def impatient() -> Callable[[], float]:
    """A clock by which the scheduler is asked in every round."""
    return itertools.count(step=100).__next__


def look(root: Path, scheduler: MadeScheduler) -> Callable[[], Job]:
    return lambda: find_jobs(root, ["air"], scheduler.of)[0]


def append(directory: AttemptDirectory, rank: int, text: str) -> None:
    directory.root.mkdir(parents=True, exist_ok=True)
    with directory.log(rank).open("a") as file:
        file.write(text)


def test_a_job_is_followed_over_its_attempts_to_its_end(tmp_path: Path) -> None:
    scheduler = MadeScheduler()
    scheduler.know("17", State.RUNNING)
    job = made_job(tmp_path)
    made_attempt(job, 1)
    append(job.attempt(1), 0, "a\nb\nc\n")
    rounds = follow(look(tmp_path, scheduler), 0, 1, impatient())
    assert next(rounds)[2] == ["c"]
    append(job.attempt(1), 0, "d\nhal")
    assert next(rounds)[2] == ["d"]
    append(job.attempt(1), 0, "f\n")
    made_attempt(job, 1, cause=Cause.PREEMPTED)
    made_attempt(job, 2, began=200)
    append(job.attempt(2), 0, "e\nf\n")
    _, notes, lines = next(rounds)
    assert lines == ["half", "e", "f"]
    assert notes[-1] == "air: attempt 2 on node1,node2"
    made_attempt(job, 2, cause=Cause.FINISHED, began=200)
    scheduler.know("17", State.COMPLETED)
    append(job.attempt(2), 0, "last\n")
    assert [(found.state, lines) for found, _, lines in rounds] == [("finished", ["last"]), ("finished", [])]


def test_a_job_that_waits_is_followed(tmp_path: Path) -> None:
    scheduler = MadeScheduler()
    scheduler.know("17", State.WAITING, reason="Resources")
    job = made_job(tmp_path)
    rounds = follow(look(tmp_path, scheduler), 0, 10, impatient())
    assert next(rounds)[1] == ["air: waiting: Resources"]
    assert next(rounds)[1] == []
    scheduler.know("17", State.RUNNING)
    made_attempt(job)
    append(job.attempt(1), 0, "a\nb\n")
    assert next(rounds)[2] == ["a", "b"]


def test_the_scheduler_is_asked_seldom(tmp_path: Path) -> None:
    scheduler = MadeScheduler()
    scheduler.know("17", State.RUNNING)
    made_job(tmp_path)
    now = [0.0]
    rounds = follow(look(tmp_path, scheduler), 0, 10, lambda: now[0])
    for now[0] in range(25):
        next(rounds)
    assert len(scheduler.asked) == 3
