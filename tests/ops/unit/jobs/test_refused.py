"""Which starts count as refused: never an end that the job has earned."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.refused import is_held_by_slurm, is_refused, starts_of
from glmforge_ops.jobs.schedulers.base import Seen, State
from glmforge_ops.jobs.script.render import Script, render
from helpers.made_jobs import made_attempt, made_job

HELD = "launch failed requeued held"


@pytest.mark.parametrize(
    ("state", "starts", "refused"),
    [
        (State.FAILED, set(), True),
        (State.NODE_FAILED, set(), True),
        (State.FAILED, {("17", 0)}, False),
        (State.CANCELLED, set(), False),
        (State.TIME_LIMIT, set(), False),
    ],
)
def test_what_counts_as_refused(state: State, starts: set[tuple[str, int]], refused: bool) -> None:
    assert is_refused(Seen("17", state), starts) is refused


@pytest.mark.parametrize(
    ("reason", "by_slurm"), [(HELD, True), ("JobHoldMaxRequeue", True), ("JobHeldUser", False), ("", False)]
)
def test_only_slurms_own_holds_count(reason: str, by_slurm: bool) -> None:
    assert is_held_by_slurm(Seen("17", State.HELD, reason)) is by_slurm
    assert not is_held_by_slurm(Seen("17", State.WAITING, reason))


def test_supervisors_that_began_are_found_in_damaged_events(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    assert starts_of(job, []) == frozenset()
    job.events.write_bytes(
        b'{"event": "supervisor started", "submission": "17", "restart": 1}\n'
        b'{"event": "supervisor started", "submission": 17, "restart": 2}\n'
        b'{"event": "note", "detail": "supervisor started", "submission": "17", "restart": 3}\n'
        b'\xff\n{"event": "supervisor started", "submission": "17", "rest'
    )
    assert starts_of(job, []) == {("17", 1)}


def test_an_attempt_tells_of_its_start(tmp_path: Path) -> None:
    """Its supervisor's event may be missing: the disk was full."""
    job = made_job(tmp_path)
    assert starts_of(job, [made_attempt(job, restart=4), None]) == {("17", 4)}


def test_a_start_before_says_nothing_of_the_last() -> None:
    seen = Seen("17", State.FAILED, restarts=2)
    assert is_refused(seen, {("17", 1), ("16", 2)})
    assert not is_refused(seen, {("17", 2)})


def test_a_task_of_an_array_is_not_taken_for_refused() -> None:
    """Its script leaves no mark: what fails before its supervisor begins would fail again."""
    assert not is_refused(Seen("12_3", State.FAILED, "NonZeroExitCode"), set())
    assert is_held_by_slurm(Seen("12_3", State.HELD, HELD)), "what Slurm holds is plain"


class Submitted:
    """A job's script, run as Slurm would, with a Python that does not start."""

    def __init__(self, root: Path) -> None:
        self.files = made_job(root)
        description = self.files.read().model_copy(update={"directory": root / "gone"})
        self.files.script.write_text(render(Script.of(description, self.files.root)))

    def start(self, number: str | None, restart: int = 0) -> str:
        """What it complains of; by hand without a number."""
        variables = {"PATH": os.environ["PATH"]} | ({"SLURM_JOB_ID": number} if number is not None else {})
        if restart:
            variables["SLURM_RESTART_COUNT"] = str(restart)
        done = subprocess.run(["bash", self.files.script], env=variables, capture_output=True, text=True, check=False)
        assert done.returncode
        return done.stderr


@pytest.fixture
def submitted(tmp_path: Path) -> Submitted:
    return Submitted(tmp_path)


def test_a_script_that_ran_was_not_refused(submitted: Submitted) -> None:
    """Though nothing else of the job did."""
    seen = Seen("17", State.FAILED, "NonZeroExitCode")
    assert is_refused(seen, starts_of(submitted.files, []))
    assert "gone" in submitted.start("17")
    assert not is_refused(seen, starts_of(submitted.files, []))
    assert is_refused(replace(seen, restarts=1), starts_of(submitted.files, [])), "the next start may be"
    submitted.start("17", restart=1)
    assert not is_refused(replace(seen, restarts=1), starts_of(submitted.files, []))
