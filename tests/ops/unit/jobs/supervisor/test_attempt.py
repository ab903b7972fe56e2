"""How long the other ranks have once one has ended: the time to save, and no more where nothing is saved."""

import signal
from pathlib import Path

import pytest

from glmforge.observe.job_records import AttemptDirectory, RankRecord, utc_now
from glmforge_ops.jobs.supervisor.attempt import Limits, Watch, patience
from glmforge_ops.jobs.supervisor.bell import Bell
from glmforge_ops.jobs.supervisor.progress import Progress
from helpers.fake_starter import Ends, FakeAllocation, FakeRunning, write_rank

LIMITS = Limits(grace_s=600.0)


def ended_with(status: int | None) -> RankRecord:
    now = utc_now()
    return RankRecord(rank=1, local_rank=0, node="b", host="b", pid=7, began=now, ended=now, status=status)


@pytest.mark.parametrize(
    "status", [75, 130, 0, None, -signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGUSR1, 128 + signal.SIGUSR1]
)
def test_who_was_told_to_save_has_time_for_it(status: int | None) -> None:
    assert patience(ended_with(status), LIMITS) == 600


def test_the_others_of_a_hung_run_have_no_time_beside_the_watchdogs() -> None:
    assert patience(ended_with(124), LIMITS) == LIMITS.hung_s < 15


def test_an_error_is_told_and_a_killed_rank_says_nothing() -> None:
    by_error, by_signal = patience(ended_with(1), LIMITS), patience(ended_with(-signal.SIGKILL), LIMITS)
    assert by_error == patience(ended_with(137), LIMITS) == LIMITS.hurry_s
    assert by_signal == patience(ended_with(-signal.SIGSEGV), LIMITS) == LIMITS.killed_s < by_error


@pytest.mark.parametrize("status", [1, 75, 124, -9])
def test_never_longer_than_the_grace(status: int) -> None:
    assert patience(ended_with(status), Limits(grace_s=2.0)) == 2.0


def watch(tmp_path: Path, ends: dict[int, Ends], limits: Limits, allocation: FakeAllocation) -> FakeRunning:
    """Ranks on a and b; those that `ends` does not name go on until they are killed."""
    directory = AttemptDirectory(tmp_path)
    for rank, end in ends.items():
        write_rank(tmp_path, rank, "ab"[rank], end, utc_now())
    running = FakeRunning(None)
    progress = Progress(directory, None, utc_now())
    said: list[str] = []
    watching = Watch(
        running, progress, allocation, ("a", "b"), limits, lambda *words, **_: said.append(words[0]), Bell()
    )
    assert watching.until_ended().status == -signal.SIGKILL
    return running


def test_the_rank_that_is_left_of_a_hung_run_is_ended(tmp_path: Path) -> None:
    """It was stopped, say, and no grace of ten minutes brings it back."""
    limits = Limits(grace_s=600.0, hung_s=0.0)
    assert watch(tmp_path, {0: Ends(124), 1: Ends(None)}, limits, FakeAllocation(("a", "b"))).killed


def test_the_ranks_that_are_left_of_a_lost_node_are_ended(tmp_path: Path) -> None:
    limits = Limits(grace_s=600.0, gone_s=0.0, ask_s=0.0, quiet_s=0.0)
    allocation = FakeAllocation(("a", "b"), gone={"b": "Slurm says DOWN*"})
    assert watch(tmp_path, {0: Ends(None), 1: Ends(None)}, limits, allocation).killed


def test_a_scheduler_that_is_down_ends_no_supervisor(tmp_path: Path) -> None:
    limits = Limits(grace_s=600.0, hung_s=0.0, ask_s=0.0, quiet_s=0.0)
    allocation = FakeAllocation(("a", "b"), down=range(1, 1000))
    assert watch(tmp_path, {0: Ends(124), 1: Ends(None)}, limits, allocation).killed
    assert allocation.asked
