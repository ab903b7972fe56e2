"""`glmforge jobs list | show | logs | follow` on made-up jobs."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from glmforge.cli.app import app
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.observe.job_records import Cause, JobDirectory
from glmforge_ops.jobs import submit
from glmforge_ops.jobs.schedulers.base import State
from helpers.made_jobs import MadeScheduler, at, made_attempt, made_job, made_rank


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeScheduler]:
    scheduler = MadeScheduler()
    monkeypatch.setattr(submit, "scheduler_of", scheduler.of)
    return scheduler


@pytest.fixture
def failed(tmp_path: Path, scheduler: MadeScheduler) -> JobDirectory:
    """The job `air`: its first attempt was preempted, in the second rank 2 failed; beside it `lr-1`, damaged."""
    scheduler.know("17", State.FAILED)
    job = made_job(tmp_path)
    made_attempt(job, 1, cause=Cause.PREEMPTED, first_step=0, last_step=50)
    made_attempt(
        job,
        2,
        cause=Cause.CODE,
        began=200,
        first_step=50,
        last_step=70,
        verdict={"rank": 2, "why": "KeyError: 'x'\x1b[31m at step 70, twice"},
    )
    for rank in range(4):
        made_rank(job, 2, rank, lines=[f"2026 {rank} 70 hello from {rank}"], status=1, ended=at(290), last_step=70)
    made_rank(job, 2, 2, status=1, ended=at(290), last_step=70, last_words=["Traceback", "KeyError: 'x'"])
    made_job(tmp_path, "lr-1").description.write_text("{")
    return job


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["jobs", *arguments, "--jobs-dir", str(root)])


def test_list(tmp_path: Path, failed: JobDirectory) -> None:
    done = run(tmp_path, "list")
    assert done.exit_code == 0
    head, air, lr = done.stdout.splitlines()
    assert head.split() == ["name", "state", "launcher", "id", "nodes", "attempt", "step", "age", "why"]
    assert air.split()[:7] == ["air", "failed", "slurm", "17", "2", "2", "70"]
    assert "code: KeyError: 'x'" in air
    assert lr.startswith("lr-1  damaged")
    assert "lr-1/job.yaml" in lr


def test_list_as_json_and_by_pattern(tmp_path: Path, failed: JobDirectory) -> None:
    rows = json.loads(run(tmp_path, "list", "--json").stdout)
    assert [(row["name"], row["state"]) for row in rows] == [("air", "failed"), ("lr-1", "damaged")]
    assert rows[0]["nodes"] == ["node1", "node2"]
    assert [row["name"] for row in json.loads(run(tmp_path, "list", "--json", "lr-*").stdout)] == ["lr-1"]


def test_without_a_command_they_are_listed(
    tmp_path: Path, failed: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLMFORGE_JOBS", str(tmp_path))
    assert CliRunner().invoke(app, ["jobs"]).stdout == run(tmp_path, "list").stdout


def test_no_jobs(tmp_path: Path, scheduler: MadeScheduler) -> None:
    assert "no jobs; 'glmforge launch' makes one" in run(tmp_path, "list").stdout


def test_show(tmp_path: Path, failed: JobDirectory) -> None:
    shown = run(tmp_path, "show", "air").stdout
    assert shown.splitlines()[0].startswith("air: failed (slurm 17, 2 nodes x 2 ranks)")
    assert "attempt  submission  nodes" in shown
    assert "50-70" in shown
    assert "first to fail: rank 2 on node2 (status 1), after step 70" in shown
    assert "  | KeyError: 'x'" in shown
    assert shown.splitlines()[-1] == "next: glmforge jobs logs air; then, when it is fixed, glmforge jobs resubmit air"


def test_show_as_json(tmp_path: Path, failed: JobDirectory) -> None:
    told = json.loads(run(tmp_path, "show", "air", "--json").stdout)
    assert [attempt["number"] for attempt in told["attempts"]] == [1, 2]
    assert told["first_to_fail"]["rank"] == 2


def test_show_a_damaged_one(tmp_path: Path, failed: JobDirectory) -> None:
    done = run(tmp_path, "show", "lr-1")
    assert done.exit_code == 0
    assert "damaged" in done.stdout


def test_logs(tmp_path: Path, failed: JobDirectory) -> None:
    assert run(tmp_path, "logs", "air").stdout == "2026 2 70 hello from 2\n"
    assert run(tmp_path, "logs", "air", "--rank", "1").stdout == "2026 1 70 hello from 1\n"
    assert run(tmp_path, "logs", "air", "--all", "--tail", "3").stdout.count("\n") == 3


def test_follow_to_the_end(tmp_path: Path, failed: JobDirectory) -> None:
    done = run(tmp_path, "follow", "air")
    assert done.exit_code == 1
    assert done.stdout == "2026 0 70 hello from 0\n"
    assert "air: failed" in done.stderr


@pytest.mark.parametrize("state", [State.RUNNING, State.FAILED])
def test_an_array_leads_to_its_tasks(tmp_path: Path, scheduler: MadeScheduler, state: State) -> None:
    """Which are the jobs that have attempts and logs."""
    scheduler.know("17", state)
    array = made_job(tmp_path, "arr", launch={"array": "3-9:2"})
    for number in (3, 5, 7, 9):
        task = made_job(tmp_path, f"arr-{number}", submission=f"17_{number}", part_of="arr", task=number)
        made_attempt(task, cause=Cause.CODE)
        made_rank(task, 1, 0, lines=[f"2026 0 - task {number}"], status=1)
    shown = run(tmp_path, "show", "arr").stdout
    assert shown.splitlines()[-1] == "next: glmforge jobs list 'arr-*', its tasks"
    assert "'glmforge jobs show arr' says why" in str(run(tmp_path, "logs", "arr").exception)
    assert run(tmp_path, "logs", "arr-3").stdout == "2026 0 - task 3\n"
    assert array.read_attempts() == []


def test_without_a_supervisor_the_log_is_the_schedulers(tmp_path: Path, scheduler: MadeScheduler) -> None:
    scheduler.name = "mpi"
    scheduler.know("17", State.FAILED)
    job = made_job(tmp_path, launch={"launcher": "mpi"})
    (job.root / "scheduler-17.log").write_text("no\n")
    assert "next: glmforge jobs logs air --scheduler; then" in run(tmp_path, "show", "air").stdout
    assert str(run(tmp_path, "logs", "air").exception).endswith("or add --scheduler")
    assert run(tmp_path, "logs", "air", "--scheduler").stdout == "no\n"


@pytest.mark.parametrize("command", ["show", "logs", "follow"])
def test_a_wrong_name(tmp_path: Path, failed: JobDirectory, command: str) -> None:
    done = run(tmp_path, command, "ait")
    assert isinstance(done.exception, LaunchError)
    assert str(done.exception).endswith("there is no job ait; did you mean air?")


FILES = (
    *("job.yaml", "run.yaml", "submissions.jsonl", "events.jsonl", "scheduler-17.log"),
    *("attempts/0002/attempt.json", "attempts/0002/rank-00000.log", "attempts/0002/rank-00002.json"),
    *(".supervisor/00000003", "run/metrics.jsonl", "run/time.jsonl"),
)
COMMANDS = (
    *(["list"], ["show", "air"], ["show", "air", "--json"], ["logs", "air"], ["logs", "air", "--all", "--tail", "1"]),
    *(["logs", "air", "--scheduler"], ["goodput", "air"], ["cancel", "air"], ["allow", "air", "n1"]),
    *(["resubmit", "air"], ["resubmit", "air", "--force"]),
)


@pytest.mark.parametrize(
    ("file", "kind"),
    [(file, kind) for file in FILES for kind in ("fifo", "huge") if kind != "huge" or not file.endswith(".log")],
)
def test_no_file_of_a_job_holds_a_command_up(tmp_path: Path, failed: JobDirectory, file: str, kind: str) -> None:
    """A pipe that nobody writes to, more than there is memory; the other jobs are listed."""
    description = failed.description.read_text()
    failed.description.write_text(description.replace("run: null", f"run: {failed.root / 'run'}"))
    made_job(tmp_path, "beside", submission="18")
    bad = failed.root / file
    bad.parent.mkdir(exist_ok=True)
    bad.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(bad)
    else:
        with bad.open("wb") as stream:
            stream.truncate(1 << 40)
    for command in COMMANDS:
        with limited(30):
            done = run(tmp_path, *command)
        assert done.exception is None or isinstance(done.exception, GlmforgeError | SystemExit), (command, done)
        assert command != ["list"] or "beside  unknown" in done.stdout


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """An error in what takes longer, which else might read for ever."""

    def end(*_: object) -> None:
        raise AssertionError(f"has not ended within {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
