"""A supervisor and real processes, started by the starter of this machine, through what may happen to them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from glmforge.observe.job_records import Cause, JobDirectory, RankRecord
from glmforge_ops.jobs.starters.nodes import LocalStarter
from glmforge_ops.jobs.supervisor.allocation import Allocation
from glmforge_ops.jobs.supervisor.supervise import Supervisor
from glmforge_ops.jobs.supervisor.watch import Limits
from helpers.fake_starter import a_job

LIMIT_S = 240.0

BEGIN = """
import os, pathlib, signal, sys, time
attempt, rank = int(os.environ["GLMFORGE_ATTEMPT"]), int(os.environ["RANK"])
def step(number):
    with open(os.environ["GLMFORGE_STEP_FILE"], "wb") as file:
        file.write(number.to_bytes(8, "little"))
    print("step", number, flush=True)
def for_ever():
    while True:
        time.sleep(0.1)  # a signal just before pause() would be missed
"""
"""Of every program below: which attempt and which rank it is, and how to tell steps."""


def program(root: Path, text: str) -> list[str]:
    path = root / "train.py"
    path.write_text(BEGIN + text)
    return [sys.executable, "-S", str(path)]


def job_of(root: Path, text: str, ranks: int = 2, **options: object) -> JobDirectory:
    return a_job(root, launcher="local", hosts=[], ranks_per_node=ranks, command=program(root, text), env={}, **options)


def supervise(job: JobDirectory, limits: Limits | None = None) -> int:
    limits = limits or Limits(grace_s=20.0, hurry_s=1.0)
    return Supervisor(job, LocalStarter(), Allocation("1", ("localhost",)), limits=limits).run()


def causes(job: JobDirectory) -> list[Cause]:
    return [attempt.verdict.cause for attempt in job.read_attempts() if attempt.verdict is not None]


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def lives(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    with suppress(OSError):
        return state.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def all_print(job: JobDirectory, number: int, text: str, ranks: int = 2) -> bool:
    logs = [job.attempt(number).log(rank) for rank in range(ranks)]
    return all(log.exists() and text in log.read_text() for log in logs)


def test_ranks_that_finish(tmp_path: Path) -> None:
    job = job_of(tmp_path, "step(1)")
    assert supervise(job) == 0
    (attempt,) = job.read_attempts()
    assert attempt.last_step == 1
    assert causes(job) == [Cause.FINISHED]


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The other one waits for it for ever, and is ended before its grace is over."""
    job = job_of(tmp_path, "step(1)\nif attempt == 1:\n    os.kill(os.getpid(), 9) if rank == 1 else for_ever()")
    began = time.monotonic()
    assert supervise(job, Limits(grace_s=LIMIT_S, hurry_s=1.0)) == 0
    assert time.monotonic() - began < LIMIT_S
    assert causes(job) == [Cause.MACHINE, Cause.FINISHED]
    verdict = job.read_attempts()[0].verdict
    assert verdict is not None
    assert (verdict.rank, verdict.node) == (1, "localhost")
    training = [event for event in job.read_events() if event["event"] == "training"]
    assert training[-1]["after"] == 1
    assert {"detected_s", "decided_s", "started_s", "first_step_s", "total_s"} <= training[-1].keys()


def test_an_error_of_the_program(tmp_path: Path) -> None:
    job = job_of(tmp_path, "step(3)\nif rank == 1:\n    {}['gone']\nfor_ever()")
    assert supervise(job) == 1
    assert causes(job) == [Cause.UNKNOWN, Cause.CODE]
    last = job.read_attempts()[-1].verdict
    assert last is not None
    for part in ("KeyError: 'gone'", "after step 3"):
        assert part in last.why


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    job = a_job(tmp_path, launcher="local", hosts=[], command=["/nowhere/at-all"])
    assert supervise(job) == 1
    last = job.read_attempts()[-1].verdict
    assert last is not None
    assert "/nowhere/at-all: cannot be started" in last.why


def test_silence_is_a_hang(tmp_path: Path) -> None:
    job = job_of(tmp_path, "step(1)\nif attempt == 1:\n    for_ever()")
    assert supervise(job, Limits(grace_s=20.0, silent_after_s=5.0)) == 0
    assert causes(job) == [Cause.HANG, Cause.FINISHED]


def test_a_disk_that_is_full(tmp_path: Path, tiny_disk: Path) -> None:
    """It is full in the first attempts, and somebody frees it."""
    text = f"step(1)\npathlib.Path({str(tiny_disk)!r}, 'x').write_bytes(bytes(1 << (24 if attempt < 3 else 4)))"
    job = job_of(tmp_path, text, ranks=1)
    assert supervise(job) == 0
    assert causes(job) == [Cause.STORAGE, Cause.STORAGE, Cause.FINISHED]


def test_a_warning_is_passed_on(tmp_path: Path) -> None:
    """Without a scheduler there is nobody to queue the job again: it stops with the status that says so."""
    text = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\nprint('ready', flush=True)\nfor_ever()"
    job = job_of(tmp_path, text)
    watching = threading.Thread(target=lambda: (wait_for(lambda: all_print(job, 1, "ready")), _signal_self()))
    watching.start()
    assert supervise(job) == 75
    watching.join()
    assert causes(job) == [Cause.PREEMPTED]


def _signal_self() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """Its ranks end with it; the next one judges what is left, and goes on."""
    text = "step(4)\nprint('ready', flush=True)\nif attempt == 1:\n    for_ever()"
    job = job_of(tmp_path, text)
    with running(job) as first:
        wait_for(lambda: all_print(job, 1, "ready"))
        ranks = job.attempt(1).read_ranks()
        first.kill()
        first.wait(LIMIT_S)
    with running(job) as second:
        assert second.wait(LIMIT_S) == 0
    assert not any(lives(rank.pid) for rank in ranks)
    assert causes(job) == [Cause.UNKNOWN, Cause.FINISHED]
    began = [RankRecord.read(job.attempt(2).rank(rank)) for rank in (0, 1)]
    ended = [RankRecord.read(job.attempt(1).rank(rank)) for rank in (0, 1)]
    assert all(a is not None and b is not None and a.ended and a.ended < b.began for a in ended for b in began)


@contextmanager
def running(job: JobDirectory) -> Iterator["subprocess.Popen[bytes]"]:
    """`glmforge supervise` of the job."""
    process = subprocess.Popen([sys.executable, "-m", "glmforge", "supervise", str(job.root)])
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT_S)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB. Needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
