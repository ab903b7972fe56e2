"""The step of srun's that an attempt is: what Slurm is asked about it."""

import signal
import subprocess
from pathlib import Path

import pytest

from glmforge_ops.jobs.starters.srun import SrunStarter, Step
from helpers.ranks import assignment, attempt_in, ended


def put_on_path(monkeypatch: pytest.MonkeyPatch, directory: Path, programs: dict[str, str]) -> None:
    for name, line in programs.items():
        (directory / name).write_text(f"#!/bin/sh\n{line}\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.parametrize("wish", ["SQUEUE_STATES", "SQUEUE_USERS", "SQUEUE_PARTITION"])
def test_what_somebody_wants_listed_by_default_hides_no_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wish: str
) -> None:
    """Else its ranks would get no warning of a preemption."""
    told = tmp_path / "told"
    programs = {
        "squeue": 'env | grep -q ^SQUEUE_ || printf "7.0 ask\\n7.3 attempt-0001\\n"',
        "scancel": f'echo "$*" >> {told}',
    }
    put_on_path(monkeypatch, tmp_path, programs)
    monkeypatch.setenv(wish, "nothing")
    with subprocess.Popen(["true"]) as process:
        Step("7", "attempt-0001", process).signal(signal.SIGUSR1)
    assert told.exists()
    assert told.read_text() == "--signal=USR1 7.3\n"


def test_steps_of_earlier_attempts_are_killed_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When they were to end, Slurm's controller may have been down."""
    told = tmp_path / "told"
    programs = {
        "squeue": 'printf "7.0 ask\\n7.3 attempt-0001\\n7.4 other\\n7.7 attempt-0002\\n"',
        "scancel": f'echo "$*" >> {told}',
        "srun": f'echo "cpus $SRUN_CPUS_PER_TASK" >> {told}',
    }
    put_on_path(monkeypatch, tmp_path, programs)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    ranks = assignment(["true"], ranks_per_node=4, cpus_per_task=3)
    assert ended(SrunStarter().start(attempt_in(tmp_path), ranks)) == 0
    assert told.read_text().splitlines() == ["--signal=KILL 7.3", "--signal=KILL 7.7", "cpus 12"]


def test_steps_of_other_tasks_of_the_array_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Asked for the job number of the last task, which is also the array's, squeue lists the steps of all of them."""
    told = tmp_path / "told"
    programs = {
        "squeue": """case "$*" in
            *--jobs=7_1*) echo "7_1.3 attempt-0001" ;;
            *) printf "7_%d.3 attempt-0001\\n" 0 1 ;;
            esac""",
        "scancel": f'echo "$*" >> {told}',
        "srun": "true",
    }
    put_on_path(monkeypatch, tmp_path, programs)
    for name, value in {"JOB_ID": "7", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    step = SrunStarter().start(attempt_in(tmp_path), assignment(["true"]))
    step.signal(signal.SIGUSR1)
    assert ended(step) == 0
    assert told.read_text().splitlines() == ["--signal=KILL 7_1.3", "--signal=USR1 7_1.3"]
