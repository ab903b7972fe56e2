"""Jobs of a directory: every state, damaged ones beside whole ones, one question to a scheduler, wrong names."""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glmforge.cluster.lease import Lease
from glmforge.errors import LaunchError
from glmforge.launch.find import as_dict, chosen_names, find_jobs, job_directory, job_names
from glmforge.launch.job import Cause, Submission, utc_now
from glmforge.launch.job_files import attempt_numbers
from glmforge.launch.schedulers.base import State
from glmforge.launch.state import CANCELLED, SUPERVISOR_LEASE, JobState
from glmforge.launch.words import aligned, job_row
from helpers.made_jobs import BEGAN, MadeScheduler, at, made_attempt, made_job

RUNNING = {"first_step": 0, "last_step": 7}


def state(root: Path, scheduler: MadeScheduler, name: str = "air") -> tuple[JobState, str]:
    job = find_jobs(root, [name], scheduler.of)[0]
    return job.state, job.why


@pytest.mark.parametrize(
    ("seen", "attempt", "expected"),
    [
        (State.WAITING, None, JobState.WAITING),
        (State.WAITING, {"cause": Cause.PREEMPTED}, JobState.WAITING),
        (State.HELD, None, JobState.HELD),
        (State.RUNNING, None, JobState.STARTING),
        (State.RUNNING, {}, JobState.STARTING),
        (State.RUNNING, {"first_step": 7, "last_step": 7}, JobState.STARTING),
        (State.RUNNING, RUNNING, JobState.RUNNING),
        (State.RUNNING, {"cause": Cause.MACHINE}, JobState.RESTARTING),
        (State.RUNNING, {"cause": Cause.FINISHED}, JobState.ENDING),
        (State.SUSPENDED, RUNNING, JobState.SUSPENDED),
        (State.ENDING, RUNNING, JobState.ENDING),
        (State.COMPLETED, {"cause": Cause.FINISHED}, JobState.FINISHED),
        (State.COMPLETED, None, JobState.FINISHED),
        (State.COMPLETED, {"cause": Cause.STOPPED}, JobState.STOPPED),
        (State.COMPLETED, {"cause": Cause.CODE}, JobState.FAILED),
        (State.FAILED, {"cause": Cause.CODE}, JobState.FAILED),
        (State.FAILED, None, JobState.FAILED),
        (State.TIME_LIMIT, RUNNING, JobState.FAILED),
        (State.NODE_FAILED, RUNNING, JobState.FAILED),
        (State.CANCELLED, RUNNING, JobState.CANCELLED),
        (None, {"cause": Cause.FINISHED}, JobState.FINISHED),
        (None, {"cause": Cause.CODE}, JobState.FAILED),
        (None, {"cause": Cause.STOPPED}, JobState.STOPPED),
        (None, {"cause": Cause.PREEMPTED}, JobState.UNKNOWN),
        (None, RUNNING, JobState.UNKNOWN),
        (None, None, JobState.UNKNOWN),
    ],
)
def test_state(tmp_path: Path, seen: State | None, attempt: dict[str, Any] | None, expected: JobState) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    if attempt is not None:
        made_attempt(job, **attempt)
    if seen is not None:
        scheduler.know("17", seen)
    assert state(tmp_path, scheduler)[0] is expected


def test_a_job_that_was_never_handed_over(tmp_path: Path) -> None:
    made_job(tmp_path, submission=None)
    assert state(tmp_path, MadeScheduler())[0] is JobState.NEW


def test_why_a_job_waits_and_why_it_failed(tmp_path: Path) -> None:
    scheduler = MadeScheduler()
    scheduler.know("17", State.WAITING, reason="Resources")
    job = made_job(tmp_path)
    assert state(tmp_path, scheduler) == (JobState.WAITING, "Resources")
    made_attempt(job, cause=Cause.CODE, verdict={"why": "the same error twice: KeyError: 'x'"})
    scheduler.know("17", State.FAILED)
    assert state(tmp_path, scheduler) == (JobState.FAILED, "code: the same error twice: KeyError: 'x'")


def test_the_verdict_of_an_earlier_submission_does_not_count(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    made_attempt(job, cause=Cause.FINISHED)
    job.add_submission(Submission(id="18", launcher="slurm", time=at(1000), again=True))
    scheduler.know("18", State.FAILED, reason="NonZeroExitCode")
    found, why = state(tmp_path, scheduler)
    assert found is JobState.FAILED
    assert "before its script began: Slurm refused this start (NonZeroExitCode)" in why


def test_cancelled_until_it_is_submitted_again(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    made_attempt(job, **RUNNING)
    scheduler.know("17", State.RUNNING)
    job.event(CANCELLED, "by hand", submission="17")
    assert state(tmp_path, scheduler)[0] is JobState.ENDING
    scheduler.know("17", State.COMPLETED)
    assert state(tmp_path, scheduler)[0] is JobState.CANCELLED
    job.add_submission(Submission(id="18", launcher="slurm", time=at(1000), again=True))
    scheduler.know("18", State.WAITING)
    assert state(tmp_path, scheduler)[0] is JobState.WAITING


def test_a_scheduler_that_does_not_answer_is_told_of_by_each_of_its_jobs(tmp_path: Path) -> None:
    made_job(tmp_path)
    assert state(tmp_path, MadeScheduler(broken="squeue: no controller")) == (
        JobState.UNKNOWN,
        "squeue: no controller",
    )


def test_a_forgotten_job_whose_supervisor_lives_is_running(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    made_attempt(job, **RUNNING)
    with Lease(job.root, "glmforge supervise", name=SUPERVISOR_LEASE):
        assert state(tmp_path, MadeScheduler())[0] is JobState.RUNNING
    assert state(tmp_path, MadeScheduler())[0] is JobState.UNKNOWN


def test_so_is_one_whose_supervisor_is_on_a_machine_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made_job(tmp_path)
    made_attempt(job, **RUNNING)
    monkeypatch.setattr("glmforge.launch.state.is_alive", lambda _: None)
    with Lease(job.root, "glmforge supervise", name=SUPERVISOR_LEASE):
        assert state(tmp_path, MadeScheduler())[0] is JobState.RUNNING


@pytest.mark.parametrize(("supervise", "expected"), [(True, JobState.FAILED), (False, JobState.STOPPED)])
def test_a_process_that_ended_without_a_word(tmp_path: Path, supervise: bool, expected: JobState) -> None:
    """A supervisor would have left one."""
    made_job(tmp_path, launch={"launcher": "local", "nodes": 1, "supervise": supervise})
    scheduler = MadeScheduler(name="local")
    scheduler.know("17", State.ENDED)
    assert state(tmp_path, scheduler)[0] is expected


def test_when_it_changed_last(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    made_attempt(job, cause=Cause.CODE, ended=110)
    scheduler.know("17", State.FAILED, submitted=at(0), began=at(5))
    assert as_dict(find_jobs(tmp_path, ["air"], scheduler.of)[0])["changed"] == at(110).isoformat()
    scheduler.know("17", State.FAILED, submitted=at(0), began=at(5), ended=at(200))
    assert as_dict(find_jobs(tmp_path, ["air"], scheduler.of)[0])["changed"] == at(200).isoformat()


def test_a_job_that_was_submitted_thousands_of_times(tmp_path: Path) -> None:
    """The end of its file begins in the middle of a line."""
    job, scheduler = made_job(tmp_path), MadeScheduler()
    line = job.submissions.read_text()
    job.submissions.write_text(line * 2000 + line.replace('"17"', '"18"'))
    scheduler.know("18", State.RUNNING)
    assert state(tmp_path, scheduler)[0] is JobState.STARTING


def test_what_lies_beside_attempts_is_none(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    made_attempt(job)
    for name in ("7", "²²²²", "0002.old", "notes"):
        (job.attempts / name).mkdir()
    assert attempt_numbers(job) == [1]


def test_each_scheduler_is_asked_once_for_all_of_its_jobs(tmp_path: Path) -> None:
    slurm, here = MadeScheduler(), MadeScheduler(name="local")
    for number in range(20):
        made_job(tmp_path, f"s{number}", submission=str(number))
        made_job(tmp_path, f"l{number}", submission=f"p{number}", launch={"launcher": "local", "nodes": 1})
    find_jobs(tmp_path, job_names(tmp_path), {"slurm": slurm, "local": here}.__getitem__)
    assert slurm.asked == [{str(number) for number in range(20)}]
    assert here.asked == [{f"p{number}" for number in range(20)}]


def damage_description(root: Path) -> None:
    (root / "job.yaml").write_text("name: [")


def damage_values(root: Path) -> None:
    text = (root / "job.yaml").read_text()
    (root / "job.yaml").write_text(text.replace("kind: script", "kind: party\x1b[31m"))


def remove_description(root: Path) -> None:
    (root / "job.yaml").unlink()


def be_a_pipe(root: Path) -> None:
    (root / "job.yaml").unlink()
    os.mkfifo(root / "job.yaml")


def huge_description(root: Path) -> None:
    (root / "job.yaml").write_bytes(b"a" * (4 << 20))


def damage_submissions(root: Path) -> None:
    (root / "submissions.jsonl").write_text('{"id": "17"\n{"id": 18}\n')


def pipe_of_submissions(root: Path) -> None:
    (root / "submissions.jsonl").unlink()
    os.mkfifo(root / "submissions.jsonl")


def pipe_of_events(root: Path) -> None:
    os.mkfifo(root / "events.jsonl")


def damage_attempt(root: Path) -> None:
    (root / "attempts/0001").mkdir(parents=True)
    (root / "attempts/0001/attempt.json").write_text('{"number": 1e999}')


def renamed(root: Path) -> None:
    text = (root / "job.yaml").read_text()
    (root / "job.yaml").write_text(text.replace("name: b-damaged", "name: other"))


@pytest.mark.parametrize(
    "damage",
    [
        damage_description,
        damage_values,
        remove_description,
        be_a_pipe,
        huge_description,
        damage_submissions,
        pipe_of_submissions,
        pipe_of_events,
        damage_attempt,
        renamed,
    ],
)
def test_a_damaged_job_is_listed_with_the_reason_beside_the_others(tmp_path: Path, damage: Any) -> None:
    scheduler = MadeScheduler()
    scheduler.know("17", State.RUNNING)
    for name in ("a", "b-damaged", "c"):
        made_job(tmp_path, name)
    damage(tmp_path / "b-damaged")
    found = find_jobs(tmp_path, job_names(tmp_path), scheduler.of)
    assert [job.state for job in found] == [JobState.STARTING, JobState.DAMAGED, JobState.STARTING]
    assert "b-damaged" in found[1].why
    for line in aligned([job_row(job) for job in found]):
        assert line.isprintable()
    assert as_dict(found[1])["state"] == "damaged"


def test_a_line_that_was_cut_is_no_damage(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    scheduler.know("17", State.RUNNING)
    with job.submissions.open("a") as file:
        file.write('{"id": "18", "laun')
    assert state(tmp_path, scheduler)[0] is JobState.STARTING


def test_only_the_ends_of_long_files_are_read(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    scheduler.know("17", State.COMPLETED)
    cancelled = json.dumps({"event": CANCELLED, "submission": "17"})
    job.events.write_text("damaged\n" * 20_000 + '{"event": "note"}\n' * 10_000 + cancelled)
    assert state(tmp_path, scheduler)[0] is JobState.CANCELLED


def test_steps_of_a_training_job_are_those_that_its_run_has_recorded(tmp_path: Path) -> None:
    run, scheduler = tmp_path / "run", MadeScheduler()
    scheduler.know("17", State.RUNNING)
    job = made_job(tmp_path / "jobs", kind="train", run=run)
    made_attempt(job, first_step=0)
    job.run_config.write_text("phases:\n- steps: 600\n- steps: 400\n")
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 300)))
    row = as_dict(find_jobs(tmp_path / "jobs", ["air"], scheduler.of)[0])
    assert (row["step"], row["num_steps"], row["attempt"], row["state"]) == (299, 1000, 1, "running")


def test_a_phase_without_steps_leaves_their_number_open(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    job.run_config.write_text("phases:\n- steps: 600\n- tokens: 400\n")
    assert as_dict(find_jobs(tmp_path, ["air"], scheduler.of)[0])["num_steps"] is None


def test_steps_of_earlier_attempts_count(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    scheduler.know("17", State.RUNNING)
    made_attempt(job, 2, first_step=40)
    assert as_dict(find_jobs(tmp_path, ["air"], scheduler.of)[0])["step"] == 40


def test_what_an_earlier_attempt_has_recorded_is_no_step_of_this_one(tmp_path: Path) -> None:
    run, scheduler = tmp_path / "run", MadeScheduler()
    scheduler.know("17", State.RUNNING)
    job = made_job(tmp_path / "jobs", kind="train", run=run)
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 7}\n')
    os.utime(run / "metrics.jsonl", (at(5).timestamp(), at(5).timestamp()))
    made_attempt(job, 2, began=10)
    found = find_jobs(tmp_path / "jobs", ["air"], scheduler.of)[0]
    assert (found.state, as_dict(found)["step"]) == (JobState.STARTING, 7)
    (run / "metrics.jsonl").write_text('{"step": 7}\n{"step": 8}\n')
    assert find_jobs(tmp_path / "jobs", ["air"], scheduler.of)[0].state is JobState.RUNNING


@pytest.mark.parametrize(
    "line", ["2026 0 12 hello", "2026 0 12 ", "2026 0 12 x\n2026 0 - y", f"2026 0 12 x\n2026 0 {'9' * 5000} y"]
)
def test_the_step_of_a_program_that_records_none_is_that_of_its_log(tmp_path: Path, line: str) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    scheduler.know("17", State.RUNNING)
    made_attempt(job)
    job.attempt(1).log(0).write_text(f"2026 0 - begins\n{line}\n2026 0 13")
    found = find_jobs(tmp_path, ["air"], scheduler.of)[0]
    assert (found.state, as_dict(found)["step"]) == (JobState.RUNNING, 12)


def test_what_lies_beside_jobs_is_none(tmp_path: Path) -> None:
    made_job(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden" / "attempts").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert job_names(tmp_path) == ["air"]


def test_names_and_patterns(tmp_path: Path) -> None:
    for name in ("lr-1", "lr-2", "base"):
        made_job(tmp_path, name)
    assert chosen_names(tmp_path, ["lr-*", "lr-2", "base"]) == ["lr-1", "lr-2", "base"]
    assert job_directory(tmp_path, "base").name == "base"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("lr-3", "there is no job lr-3; did you mean lr-2"),
        ("zzz", "there is no job zzz; 'glmforge jobs list'"),
        ("x*", r"no job matches x\*"),
        ("../lr-1", "there is no job"),
        ("a\x1bb", "there is no job 'a"),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest_one(tmp_path: Path, wrong: str, said: str) -> None:
    for name in ("lr-1", "lr-2", "base"):
        made_job(tmp_path, name)
    with pytest.raises(LaunchError, match=said) as told:
        chosen_names(tmp_path, [wrong])
    assert str(told.value).isprintable()
    with pytest.raises(LaunchError, match="no job"):
        job_directory(tmp_path, wrong)


def test_no_directory_of_jobs(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="--jobs-dir"):
        job_names(tmp_path / "none")


def test_a_row_tells_what_is_known(tmp_path: Path) -> None:
    job, scheduler = made_job(tmp_path), MadeScheduler()
    made_attempt(job, 3, first_step=0, last_step=120)
    scheduler.know("17", State.RUNNING)
    row = job_row(find_jobs(tmp_path, ["air"], scheduler.of)[0], BEGAN + timedelta(seconds=200))
    assert row == ["air", "running", "slurm", "17", "2", "3", "120", "3m 20s", ""]
    assert utc_now() > BEGAN
