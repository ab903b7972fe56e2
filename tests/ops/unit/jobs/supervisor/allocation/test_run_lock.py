"""Whose claim the supervisor takes away: that of a rank that is seen to have ended, or was silent for long enough."""

import errno
import os
import socket
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from glmforge.config import dump_config, load_config
from glmforge.config.schema import RunConfig
from glmforge.observe.job_records import JobDirectory, RankRecord
from glmforge.runtime import lease as lease_module
from glmforge.runtime.lease import LOCK, Claim, Lease, newest_claim
from glmforge_ops.jobs.starters.base import Ranks
from glmforge_ops.jobs.supervisor.allocation.run_lock import RunLock, last_seen, run_locks
from glmforge_ops.jobs.supervisor.supervise import Supervisor
from helpers.fake_starter import NO_PROCESS, Ends, FakeAllocation, FakeRunning, FakeStarter, a_job

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEASE_S = 60.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of `time.monotonic`, its only entry."""
    now = [1000.0]
    monkeypatch.setattr(lease_module.time, "monotonic", lambda: now[0])
    return now


def held(
    run: Path, *, host: str = "node7", pid: int = 4711, since: datetime = BEGAN, beats: int = 0, job: str = ""
) -> None:
    """A claim of a process on another machine."""
    with Lease(run, "glmforge train"):
        pass
    claim = newest_claim(run)
    assert claim is not None
    holder = claim.holder.model_copy(update={"host": host, "pid": pid, "boot": "another", "job": job})
    changed = {"holder": holder, "since": since.isoformat(), "beats": beats, "released": False}
    write(run, claim.model_copy(update=changed))


def write(run: Path, claim: Claim) -> None:
    newest = max((run / LOCK).iterdir())
    newest.write_text(claim.model_dump_json())


def beat(run: Path) -> None:
    claim = newest_claim(run)
    assert claim is not None
    write(run, claim.model_copy(update={"beats": claim.beats + 1}))


def rank(*, host: str = "node7", pid: int = 4711, ended_after_s: float | None = 30.0) -> RankRecord:
    ended = None if ended_after_s is None else BEGAN + timedelta(seconds=ended_after_s)
    return RankRecord(rank=0, local_rank=0, node="n", host=host, pid=pid, began=BEGAN, ended=ended)


def is_free(run: Path) -> bool:
    lease = Lease(run, "next", lease_s=3600)
    if lease.attempt():
        lease.release()
        return True
    return False


def a_run(*overrides: str) -> RunConfig:
    return load_config("demo", list(overrides))


def lock_of(run: Path) -> tuple[RunLock, list[str]]:
    said: list[str] = []
    return RunLock(
        run, "glmforge supervise job", LEASE_S, lambda event, detail: said.append(f"{event}: {detail}")
    ), said


def test_the_claim_of_a_rank_that_has_ended_is_taken_away_at_once(tmp_path: Path) -> None:
    held(tmp_path)
    lock, said = lock_of(tmp_path)
    lock.ended([rank(pid=1), rank()])
    assert is_free(tmp_path)
    (line,) = said
    assert line.startswith(
        f"run unlocked: {tmp_path} was in use by 'glmforge train' on node7 (process 4711), since 2026"
    )
    assert line.endswith(": it has ended")


@pytest.mark.parametrize(
    ("holder", "known"),
    [
        ({}, rank(ended_after_s=None)),
        ({"host": "node8"}, rank()),
        ({"pid": 4712}, rank()),
        ({"since": BEGAN + timedelta(minutes=1)}, rank()),  # the number was used again
        ({"since": BEGAN - timedelta(minutes=1)}, rank()),
        ({"since": BEGAN.replace(tzinfo=None)}, rank()),
        ({"job": "Slurm job 7"}, rank()),
    ],
)
def test_a_claim_that_may_be_of_another_process_stays(
    tmp_path: Path, holder: dict[str, object], known: RankRecord
) -> None:
    held(tmp_path, **holder)  # type: ignore[arg-type]
    lock, said = lock_of(tmp_path)
    lock.ended([known])
    assert not is_free(tmp_path)
    assert not said


def test_a_claim_that_did_not_change_since_before_the_attempt_ended(tmp_path: Path, clock: list[float]) -> None:
    held(tmp_path)
    lock, said = lock_of(tmp_path)
    lock.look()
    clock[0] += 0.75 * LEASE_S
    lock.ended([rank(ended_after_s=None)])
    assert not is_free(tmp_path)
    clock[0] += 0.2 * LEASE_S
    lock.look()
    assert not is_free(tmp_path)
    clock[0] += 0.1 * LEASE_S
    lock.look()
    assert is_free(tmp_path)
    assert said[0].endswith("it gave no sign of life for 63 s")


def test_a_sign_of_life_begins_the_time_anew(tmp_path: Path, clock: list[float]) -> None:
    held(tmp_path)
    lock, said = lock_of(tmp_path)
    lock.ended([rank(ended_after_s=None)])
    for _ in range(5):
        clock[0] += 0.5 * LEASE_S
        beat(tmp_path)
        lock.look()
    assert not is_free(tmp_path)
    assert not said


@pytest.mark.parametrize("known", [[], [rank(host=socket.gethostname(), pid=os.getpid())]])
def test_a_process_of_this_machine_that_lives_keeps_its_claim(
    tmp_path: Path, clock: list[float], known: list[RankRecord]
) -> None:
    """It may be suspended. A container's processes have the same numbers as ours."""
    with Lease(tmp_path, "glmforge train", lease_s=3600):
        claim = newest_claim(tmp_path)
        assert claim is not None
        write(tmp_path, claim.model_copy(update={"since": BEGAN.isoformat()}))
        lock, said = lock_of(tmp_path)
        lock.ended(known)
        clock[0] += 10 * LEASE_S
        lock.look()
        assert not said


def test_an_attempt_without_ranks_does_not_hide_whose_claim_it_was(tmp_path: Path) -> None:
    held(tmp_path)
    lock, said = lock_of(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "void", unwritable)
        lock.ended([rank()])
    assert not said
    lock.ended([])
    assert is_free(tmp_path)


def unwritable(*_: object) -> bool:
    raise OSError(errno.EROFS, "Read-only file system")


def test_what_another_program_has_seen_counts(tmp_path: Path, clock: list[float]) -> None:
    held(tmp_path)
    before, _ = lock_of(tmp_path)
    assert before.seen() == {}
    before.look()
    clock[0] += 0.7 * LEASE_S
    before.look()
    clock[0] = 5.0  # of another machine
    lock, said = lock_of(tmp_path)
    lock.was_seen(before.seen(), 0.1 * LEASE_S)
    lock.look()
    lock.ended([rank(ended_after_s=None)])
    clock[0] += 0.15 * LEASE_S
    lock.look()
    assert not said
    clock[0] += 0.15 * LEASE_S
    lock.look()
    assert said[0].endswith("it gave no sign of life for 66 s")
    assert is_free(tmp_path)


def test_what_was_seen_of_another_claim_does_not(tmp_path: Path, clock: list[float]) -> None:
    held(tmp_path)
    before, _ = lock_of(tmp_path)
    before.look()
    clock[0] += 2 * LEASE_S
    before.look()
    beat(tmp_path)
    lock, said = lock_of(tmp_path)
    lock.was_seen(before.seen(), 1e6)
    lock.ended([rank(ended_after_s=None)])
    assert not said


@pytest.mark.parametrize(
    "change",
    [
        {"directory": "/another"},
        {"directory": None},
        {"claim": 7},
        {"unchanged_s": "1000"},
        {"unchanged_s": -1.0},
        {"unchanged_s": float("nan")},
        {"unchanged_s": float("inf")},
        {"unchanged_s": None},
    ],
)
def test_a_damaged_record_counts_for_nothing(tmp_path: Path, clock: list[float], change: dict[str, object]) -> None:
    held(tmp_path)
    before, _ = lock_of(tmp_path)
    before.look()
    clock[0] += 2 * LEASE_S
    before.look()
    lock, said = lock_of(tmp_path)
    lock.was_seen(before.seen() | change, 1e6)
    lock.ended([rank(ended_after_s=None)])
    assert not said


def test_ranks_that_run_keep_their_lock_however_silent(tmp_path: Path, clock: list[float]) -> None:
    """Storage that hangs for minutes ends no run. Nor does the next attempt lose what it has claimed."""
    held(tmp_path)
    lock, said = lock_of(tmp_path)
    for _ in range(10):
        lock.look()
        clock[0] += LEASE_S
    assert not said
    lock.ended([rank()])
    assert len(said) == 1
    held(tmp_path)  # by the next attempt
    for _ in range(10):
        lock.look()
        clock[0] += LEASE_S
    assert not is_free(tmp_path)
    assert len(said) == 1


def test_storage_that_cannot_be_read_when_the_ranks_end(tmp_path: Path, clock: list[float]) -> None:
    """What is claimed when it can be read again may be the next attempt's."""
    held(tmp_path)
    lock, said = lock_of(tmp_path)
    lock.ended([])
    (tmp_path / LOCK).rename(tmp_path / "away")
    (tmp_path / LOCK).touch()
    lock.ended([rank()])
    (tmp_path / LOCK).unlink()
    (tmp_path / "away").rename(tmp_path / LOCK)
    for _ in range(3):
        clock[0] += LEASE_S
        lock.look()
    assert not is_free(tmp_path)
    assert not said


def test_a_claim_that_was_given_back(tmp_path: Path) -> None:
    held(tmp_path)
    claim = newest_claim(tmp_path)
    assert claim is not None
    write(tmp_path, claim.model_copy(update={"released": True}))
    lock, said = lock_of(tmp_path)
    lock.ended([rank()])
    assert not said
    assert len(list((tmp_path / LOCK).iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_a_damaged_claim_is_left_to_the_ranks(tmp_path: Path, clock: list[float], content: bytes) -> None:
    held(tmp_path)
    max((tmp_path / LOCK).iterdir()).write_bytes(content)
    lock, said = lock_of(tmp_path)
    lock.ended([rank()])
    clock[0] += 2 * LEASE_S
    lock.look()
    assert not said


def test_a_run_that_nobody_has_held(tmp_path: Path) -> None:
    lock, said = lock_of(tmp_path / "run")
    lock.look()
    lock.ended([])
    assert not said
    assert not (tmp_path / "run").exists()


def test_a_run_has_a_lock_where_its_checkpoints_are_elsewhere(tmp_path: Path) -> None:
    job = a_job(tmp_path, kind="train", run=Path("runs/tiny"))
    job.run_config.write_text(dump_config(a_run("checkpoint.dir=/elsewhere", "fault_tolerance.lock_lease_s=7")))
    locks = run_locks(job, print)
    assert [lock.directory for lock in locks] == [tmp_path / "runs/tiny", Path("/elsewhere")]
    assert {lock.lease_s for lock in locks} == {7.0}


def test_a_script_has_none_and_neither_has_a_damaged_configuration(tmp_path: Path) -> None:
    job = a_job(tmp_path / "a")
    assert run_locks(job, print) == []
    job = a_job(tmp_path / "b", kind="train", run=Path("run"))
    job.run_config.write_text("phases: [")
    assert run_locks(job, print) == []


def a_run_job(root: Path, *overrides: str, **options: object) -> JobDirectory:
    job = a_job(root, nodes=2, kind="train", run=Path("run"), **options)
    job.run_config.write_text(dump_config(a_run(*overrides)))
    return job


KILLED, GONE = Ends(-9), Ends(None)


@dataclass
class HeldAtFirst:
    """The first attempt leaves the run's directory held on another machine, and ends like this."""

    run: Path
    ends: Ends
    free: list[bool] = field(default_factory=list)
    """Whether it was free when another attempt began."""

    def __call__(self, ranks: Ranks, number: int) -> dict[int, Ends]:
        if number > 1:
            self.free.append(is_free(self.run))
            return {}
        held(self.run, host="a", pid=NO_PROCESS, since=datetime.now(UTC))
        return {0: self.ends, 1: self.ends}


def test_the_supervisor_frees_the_run_before_it_starts_the_next_ranks(tmp_path: Path) -> None:
    job, script = a_run_job(tmp_path), HeldAtFirst(tmp_path / "run", KILLED)
    assert Supervisor(job, FakeStarter(script), FakeAllocation(("a", "b")), wait_s=0.0).run() == 0
    assert script.free == [True]
    (event,) = [event for event in job.read_events() if event["event"] == "run unlocked"]
    assert str(event["detail"]).endswith("it has ended")


def test_so_does_the_next_supervisor(tmp_path: Path) -> None:
    """Which finds an attempt that was judged, and a decision that was not carried out."""
    job, script = a_run_job(tmp_path), HeldAtFirst(tmp_path / "run", KILLED)
    supervisor = Supervisor(job, FakeStarter(script), FakeAllocation(("a", "b")), wait_s=0.0)
    supervisor.locks = []  # it is killed before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "_wait", lambda seconds: (bool(job.read_attempts()) and 1 / 0) or True)
        with pytest.raises(ZeroDivisionError):
            supervisor.run()
    assert not is_free(tmp_path / "run")
    assert Supervisor(job, FakeStarter(script), FakeAllocation(("a", "b")), wait_s=0.0).run() == 0
    assert script.free == [True]


def test_the_time_between_attempts_counts(tmp_path: Path) -> None:
    job = a_run_job(tmp_path, "fault_tolerance.lock_lease_s=0.1", supervisor={"back_off_s": 1.0, "min_nodes": 1})
    script = HeldAtFirst(tmp_path / "run", GONE)
    assert Supervisor(job, FakeStarter(script), FakeAllocation(("a", "b"), gone={"b": "down"})).run() == 0
    assert script.free == [True]


def test_what_the_last_supervisor_has_seen_counts_after_a_requeue(tmp_path: Path) -> None:
    job = a_run_job(tmp_path, "fault_tolerance.lock_lease_s=3600")
    script, allocation = HeldAtFirst(tmp_path / "run", GONE), FakeAllocation(("a", "b"), can_requeue=True)

    def and_b_is_lost(ranks: Ranks, number: int) -> dict[int, Ends]:
        allocation.gone = {"b": "down"}
        return script(ranks, number)

    assert Supervisor(job, FakeStarter(and_b_is_lost), allocation, wait_s=0.0).run() == 0
    (event,) = [event for event in job.read_events() if event["event"] == "requeued"]
    (seen,) = last_seen(job)
    assert seen == event["locks"][0]
    assert seen["directory"] == str(tmp_path / "run")
    job.event("requeued", "by its standby", locks=[{}, 7, seen | {"unchanged_s": 1800.0}])
    allocation = FakeAllocation(("a", "b"), restart=1, queued=1800.0)
    assert Supervisor(job, FakeStarter(script), allocation, wait_s=0.0).run() == 0
    assert script.free == [True]


@pytest.mark.parametrize("locks", [None, 7, {}, [7, None]])
def test_an_event_that_tells_nothing_of_locks(tmp_path: Path, locks: object) -> None:
    job = a_job(tmp_path)
    assert last_seen(job) == []
    job.event("requeued", locks=locks)
    assert last_seen(job) == []


class WaitsForTheRun(FakeStarter):
    """The second attempt ends once the run's directory is free, as ranks wait for it."""

    def start(self, ranks: Ranks) -> FakeRunning:
        running = super().start(ranks)
        if len(self.started) > 1:
            run, deadline = ranks.directory.root.parents[3] / "run", time.monotonic() + 60
            running.poll = lambda: 0 if is_free(run) or time.monotonic() > deadline else None  # type: ignore[method-assign]
        return running


def test_so_does_the_time_while_ranks_start(tmp_path: Path) -> None:
    job = a_run_job(tmp_path, "fault_tolerance.lock_lease_s=0.5", supervisor={"min_nodes": 1})
    script = HeldAtFirst(tmp_path / "run", GONE)
    starter, allocation = WaitsForTheRun(script), FakeAllocation(("a", "b"), gone={"b": "down"})
    assert Supervisor(job, starter, allocation, wait_s=0.0).run() == 0
    assert script.free == [False]
    assert [event["event"] for event in job.read_events()].count("run unlocked") == 1
