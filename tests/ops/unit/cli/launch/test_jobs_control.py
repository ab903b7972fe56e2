"""`glmforge jobs cancel | resubmit | allow | goodput` on made-up jobs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from glmforge.cli.app import app
from glmforge.errors import LaunchError
from glmforge.observe.job_records import Cause
from glmforge_ops.jobs import submit
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.supervisor.nodes import Ledger
from helpers.made_jobs import MadeScheduler, made_attempt, made_job


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeScheduler]:
    scheduler = MadeScheduler()
    monkeypatch.setattr(submit, "scheduler_of", scheduler.of)
    monkeypatch.setenv("PATH", "/no/programs")  # a Slurm of this machine is not asked
    return scheduler


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["jobs", *arguments, "--jobs-dir", str(root)])


def test_cancel_several_though_one_is_damaged(tmp_path: Path, scheduler: MadeScheduler) -> None:
    for name, number in (("lr-1", "1"), ("lr-2", "2"), ("lr-3", "3"), ("base", "4")):
        made_job(tmp_path, name, submission=number)
        scheduler.know(number, State.RUNNING)
    (tmp_path / "lr-1/job.yaml").write_text("{")
    done = run(tmp_path, "cancel", "lr-*")
    assert done.exit_code == 1
    assert scheduler.cancelled == ["2", "3"]
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == ["lr-2: cancelled", "lr-3: cancelled"]
    assert "lr-1: cannot be cancelled" in done.stderr


def test_resubmit(tmp_path: Path, scheduler: MadeScheduler) -> None:
    for name, number, state in (("a", "1", State.FAILED), ("b", "2", State.RUNNING)):
        made_job(tmp_path, name, submission=number).script.write_text("exit\n")
        scheduler.know(number, state)
    done = run(tmp_path, "resubmit", "a", "b")
    assert done.exit_code == 1
    assert done.stdout == "a: submitted again (slurm 1001)\n"
    assert "b: is starting (2); wait until it ends, or 'glmforge jobs cancel b' first" in done.stderr


def test_a_node_is_allowed_again(tmp_path: Path, scheduler: MadeScheduler) -> None:
    scheduler.know("17", State.RUNNING)
    job = made_job(tmp_path)
    job.event("node out", node="node2", reason="3 failures, the last: Xid 79", drained=False)
    shown = run(tmp_path, "show", "air").stdout
    assert "excluded nodes ('glmforge jobs allow air NODE' uses one again):\n  node2  since " in shown
    assert list(json.loads(run(tmp_path, "show", "air", "--json").stdout)["nodes_out"]) == ["node2"]
    assert run(tmp_path, "allow", "air", "node2").stdout == "air: node2 is used again\n"
    assert Ledger.read(job).out == {}
    assert "excluded" not in run(tmp_path, "show", "air").stdout


def test_a_node_that_is_not_out(tmp_path: Path) -> None:
    made_job(tmp_path)
    done = run(tmp_path, "allow", "air", "node9")
    assert isinstance(done.exception, LaunchError)
    assert "node9" in str(done.exception)


def test_goodput(tmp_path: Path) -> None:
    for name in ("lr-1", "lr-2"):
        made_attempt(made_job(tmp_path, name), cause=Cause.FINISHED)
    done = run(tmp_path, "goodput", "lr-*")
    assert done.exit_code == 0, done.output
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["lr-1", "lr-2"]
    rows = json.loads(run(tmp_path, "goodput", "lr-1", "--json").stdout)
    assert rows[0]["job"] == "lr-1"


@pytest.mark.parametrize("command", ["cancel", "resubmit", "goodput"])
def test_a_wrong_name_ends_nothing(tmp_path: Path, scheduler: MadeScheduler, command: str) -> None:
    scheduler.know("17", State.RUNNING)
    made_job(tmp_path)
    done = run(tmp_path, command, "air", "ait")
    assert isinstance(done.exception, LaunchError)
    assert str(done.exception).endswith("there is no job ait; did you mean air?")
    assert scheduler.cancelled == []
