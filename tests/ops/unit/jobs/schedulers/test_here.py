"""Jobs without a scheduler: processes of this machine, known by more than their ids."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.schedulers.here import Here, id_of_this_process

LAUNCH = LaunchConfig(launcher="local")


def job_of(directory: Path, script: str) -> JobDirectory:
    directory.mkdir(parents=True)
    job = JobDirectory(directory)
    job.script.write_text(f"#!/bin/bash\n{script}\n")
    return job


def state_of(id_: str) -> State:
    return Here().look([id_])[id_].state


def test_a_detached_job_runs_is_cancelled_and_is_over(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    subprocess.run(["mkfifo", str(ready)], check=True)
    job = job_of(tmp_path / "a b" / "air", f"echo begun; echo up > '{ready}'; exec sleep 1000")
    id_ = Here().submit(job, LAUNCH)
    ready.read_text()  # waits until the script has come so far
    assert state_of(id_) is State.RUNNING
    Here().cancel(id_)
    pid = int(id_.partition(".")[0])
    os.waitpid(pid, 0)  # it is a child of this very process

    assert state_of(id_) is State.ENDED
    Here().cancel(id_)  # has ended already: left
    (log,) = job.root.glob("scheduler-*.log")
    assert log.read_text() == "begun\n"


def test_the_number_of_a_process_is_not_that_of_the_next_one_with_its_id() -> None:
    pid, began, rest = id_of_this_process().split(".", 2)
    assert state_of(f"{pid}.{began}.{rest}") is State.RUNNING
    assert state_of(f"{pid}.{int(began) + 1}.{rest}") is State.ENDED
    host = rest.partition("@")[2]
    assert state_of(f"{pid}.{began}.{'f' * 8}.1@{host}") is State.ENDED
    assert state_of(f"{pid}.{began}.{'f' * 8}.1@elsewhere") is State.UNKNOWN
    with pytest.raises(LaunchError, match="runs on elsewhere; ask there"):
        Here().cancel(f"{pid}.{began}.{'f' * 8}.1@elsewhere")


@pytest.mark.parametrize("id_", ["", "12", "-1.2.3.4@a", "1.2.3.4@a b"])
def test_what_is_no_number_of_ours_is_unknown_and_not_cancelled(id_: str) -> None:
    assert state_of(id_) is State.UNKNOWN
    with pytest.raises(LaunchError, match="not the number of a process"):
        Here().cancel(id_)


def test_a_process_keeps_its_number_when_it_becomes_the_job(tmp_path: Path) -> None:
    job = job_of(tmp_path / "air", "echo $$")
    program = (
        "from pathlib import Path\nfrom glmforge.observe.job_records import JobDirectory\n"
        "from glmforge_ops.jobs.schedulers.here import become, id_of_this_process\n"
        f"print(id_of_this_process())\nbecome(JobDirectory(Path({str(job.root)!r})))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    id_, pid = done.stdout.split()
    assert id_.startswith(f"{pid}.")


@pytest.mark.parametrize("changes", [{"partition": "gpu"}, {"array": "0-3"}, {"sbatch_args": ["--mail-type=END"]}])
def test_what_needs_a_scheduler_is_refused(changes: dict[str, object]) -> None:
    (option,) = changes
    with pytest.raises(LaunchError, match=f"^{option}: the launcher local has no scheduler; leave it out$"):
        Here().check(LaunchConfig(launcher="local", **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("program", "options"), [("mpirun", {"launcher": "mpi"}), ("ssh", {"launcher": "ssh"})])
def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, program: str, options: dict[str, Any]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match=f"{program}: is not on this machine"):
        Here().check(LaunchConfig(nodes=2, hosts=["a", "b"], **options))
