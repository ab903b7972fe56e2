"""Sweeps written, submitted as an array, submitted again, run from here and cancelled."""

import json
from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import ConfigError, LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge.runtime.lease import HeldError, Lease
from glmforge_ops.jobs.job import Cause, JobDirectory
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.schedulers.commands import Answer
from glmforge_ops.jobs.state.job_state import JobState
from glmforge_ops.jobs.submit.hand_over import note_submission
from glmforge_ops.jobs.sweep import make, task, work
from glmforge_ops.jobs.sweep.make import array_of, make_sweep
from glmforge_ops.jobs.sweep.points import expand
from glmforge_ops.jobs.sweep.record import SweepDirectory
from glmforge_ops.jobs.sweep.work import Sweep
from helpers.fake_scheduler import FakeScheduler, tasks_of
from helpers.made_jobs import made_attempt


@pytest.fixture
def new_sweep(tmp_path, monkeypatch):
    """Makes a sweep of six points; nothing is written."""
    monkeypatch.chdir(tmp_path)

    def new(launcher="slurm", at_once=2, name="lr", axes=("optim.lr=1e-3,2e-3,3e-3", "seed=1,2"), **launch):
        options = LaunchConfig(launcher=launcher, **launch)
        return make_sweep(name, "demo", ["output_dir=out/base"], expand(axes), options, tmp_path / "jobs", at_once)

    return new


@pytest.fixture
def scheduler():
    return FakeScheduler()


@pytest.fixture
def sweep(new_sweep, scheduler, monkeypatch):
    """Written, under Slurm."""
    monkeypatch.setattr(work, "submissions_in", lambda directory: [])
    new = new_sweep()
    new.write()
    return Sweep(new.directory, lambda launcher: scheduler)


def job_of(sweep, number):
    return sweep.directory.point(sweep.record.points[number])


def end(sweep, scheduler, number, cause, state):
    id_ = job_of(sweep, number).read_submissions()[-1].id
    scheduler.end(id_, state)
    made_attempt(job_of(sweep, number), len(job_of(sweep, number).read_attempts()) + 1, cause=cause, submission=id_)


def finish(sweep, scheduler, number):
    end(sweep, scheduler, number, Cause.FINISHED, State.COMPLETED)


def fail(sweep, scheduler, number):
    end(sweep, scheduler, number, Cause.CODE, State.FAILED)


@pytest.mark.parametrize(
    ("tasks", "at_once", "array"),
    [
        (range(8), 2, "0-7%2"),
        ([0], None, "0"),
        ([5, 0, 1, 2], 3, "0-2,5%3"),
        ([1, 3, 5, 6], None, "1,3,5-6"),
        ([4, 4, 5], None, "4-5"),
    ],
)
def test_an_array_of_tasks(tasks, at_once, array):
    assert array_of(list(tasks), at_once) == array
    assert tasks_of(array) == sorted(set(tasks))


def test_each_point_is_a_job_and_all_are_one_array(sweep, scheduler, tmp_path):
    assert sweep.submit_array() == [f"lr-{number:03d}" for number in range(6)]
    assert scheduler.arrays == {"1": "0-5%2"}
    assert "#SBATCH --array=0-5%2\n" in scheduler.scripts["1"]
    assert f'sweep task {tmp_path}/jobs/lr "$SLURM_ARRAY_TASK_ID"' in scheduler.scripts["1"]
    for number in range(6):
        job = job_of(sweep, number)
        description = job.read()
        assert (description.name, description.part_of, description.task) == (f"lr-{number:03d}", "lr", number)
        assert description.launch.array is None
        assert description.run == tmp_path / "out" / job.name
        assert job.read_submissions()[-1].id == f"1_{number}"
        assert f"name: {job.name}\n" in job.run_config.read_text()
    assert "lr: 0.002" in job_of(sweep, 2).run_config.read_text()


def test_submitted_again_is_what_has_not_finished_and_is_not_on_its_way(sweep, scheduler):
    sweep.submit_array()
    finish(sweep, scheduler, 0)
    fail(sweep, scheduler, 1)
    fail(sweep, scheduler, 4)
    assert sweep.submit_array() == ["lr-001", "lr-004"]
    assert scheduler.arrays["2"] == "1,4%2"
    assert "#SBATCH --array=1,4%2\n" in scheduler.scripts["2"]
    assert [job_of(sweep, number).read_submissions()[-1].id for number in range(6)] == [
        "1_0",
        "2_1",
        "1_2",
        "1_3",
        "2_4",
        "1_5",
    ]
    assert sweep.submit_array() == []
    assert len(scheduler.scripts) == 2


def test_only_those_that_failed(sweep, scheduler):
    sweep.submit_array()
    finish(sweep, scheduler, 0)
    fail(sweep, scheduler, 1)
    sweep.cancel()
    assert sweep.submit_array(failed_only=True) == ["lr-001"]
    assert sweep.submit_array() == [f"lr-{number:03d}" for number in range(2, 6)]


def test_what_the_scheduler_has_forgotten_is_submitted_again(sweep, scheduler):
    sweep.submit_array()
    finish(sweep, scheduler, 3)
    scheduler.after.clear()
    assert sweep.submit_array() == ["lr-000", "lr-001", "lr-002", "lr-004", "lr-005"]


def test_what_may_be_running_while_the_scheduler_does_not_answer_is_left(sweep, scheduler):
    sweep.submit_array()
    scheduler.is_silent = True
    assert sweep.submit_array() == []


def test_a_submission_that_fails_leaves_a_sweep_to_be_submitted(sweep, scheduler):
    scheduler.is_down = True
    with pytest.raises(LaunchError, match="nothing was submitted"):
        sweep.submit_array()
    assert {job.state for job in sweep.jobs()} == {JobState.NEW}
    scheduler.is_down = False
    assert len(sweep.submit_array()) == 6


@pytest.mark.parametrize("number", [None, 0, 5])
def test_an_array_that_cannot_be_noted_is_cancelled(sweep, scheduler, number):
    """In the sweep's own events, or in a point's job."""
    events = (sweep.directory.own if number is None else job_of(sweep, number)).events
    submit = scheduler.submit

    def fills_the_disk(job, launch):
        events.unlink(missing_ok=True)
        events.mkdir()
        return submit(job, launch)

    scheduler.submit = fills_the_disk
    with pytest.raises(LaunchError, match=r"^slurm 1 was cancelled, since it could not be noted: "):
        sweep.submit_array()
    assert scheduler.cancelled == ["1"]
    assert {scheduler.state(f"1_{number}") for number in range(6)} == {State.CANCELLED}
    scheduler.submit = submit
    events.rmdir()
    assert len(sweep.submit_array()) == 6
    assert [job_of(sweep, number).read_submissions()[-1].id for number in range(6)] == [f"2_{n}" for n in range(6)]


def test_killed_while_it_was_noted_the_rest_is_noted(sweep, scheduler):
    sweep.submit_array()
    for number in (2, 5):
        job_of(sweep, number).submissions.unlink()
    assert sweep.submit_array() == []
    assert [job_of(sweep, number).read_submissions()[-1].id for number in range(6)] == [f"1_{n}" for n in range(6)]
    assert len(job_of(sweep, 0).read_submissions()) == 1


def test_killed_before_it_was_noted_the_array_is_found(sweep, scheduler, monkeypatch):
    submit = scheduler.submit

    def killed(job, launch):
        submit(job, launch)
        raise KeyboardInterrupt

    scheduler.submit = killed
    with pytest.raises(KeyboardInterrupt):
        sweep.submit_array()
    scheduler.submit = submit
    monkeypatch.setattr(work, "submissions_in", lambda directory: ["1"] if directory.name == "lr" else [])
    assert sweep.submit_array() == []
    assert job_of(sweep, 4).read_submissions()[-1].id == "1_4"
    assert list(scheduler.scripts) == ["1"]


def test_a_full_disk_keeps_none_running(sweep, scheduler, monkeypatch):
    def full(*_, **__):
        raise RunFileError("events.jsonl: cannot be written (No space left on device)")

    sweep.submit_array()
    monkeypatch.setattr(JobDirectory, "event", full)
    with pytest.raises(LaunchError, match="cancelled, but that could not be noted"):
        sweep.cancel()
    assert scheduler.cancelled == ["1"]


def test_one_that_cannot_be_cancelled_keeps_none_of_the_others_running(sweep, scheduler, monkeypatch):
    sweep.submit_array()
    fail(sweep, scheduler, 1)
    assert sweep.submit_array() == ["lr-001"]
    cancel = scheduler.cancel

    def some(number):
        if number == "1":
            raise LaunchError("scancel 1: Access denied")
        cancel(number)

    monkeypatch.setattr(scheduler, "cancel", some)
    with pytest.raises(LaunchError, match=r"^scancel 1: Access denied$"):
        sweep.cancel()
    assert scheduler.cancelled == ["2"]


def test_cancelled_together(sweep, scheduler):
    sweep.submit_array()
    finish(sweep, scheduler, 0)
    assert len(sweep.cancel()) == 5
    assert scheduler.cancelled == ["1"]
    assert [job.state for job in sweep.jobs()] == [JobState.FINISHED] + [JobState.CANCELLED] * 5
    assert sweep.cancel() == []


def test_two_starts_at_once_are_told_apart(sweep, scheduler, new_sweep):
    with Lease(sweep.directory.root, "another"), pytest.raises(HeldError, match="in use by 'another'"):
        sweep.submit_array()
    with pytest.raises(LaunchError, match="'glmforge sweep resubmit lr'"):
        new_sweep().write()
    assert scheduler.scripts == {}


def test_a_name_that_is_taken_leaves_nothing_behind(new_sweep, tmp_path):
    JobDirectory(tmp_path / "jobs" / "lr-004").root.mkdir(parents=True)
    with pytest.raises(LaunchError, match="lr-004"):
        new_sweep().write()
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["lr-004"]


def test_a_sweep_that_was_not_written_to_its_end(sweep):
    sweep.directory.record.unlink()
    with pytest.raises(LaunchError, match="interrupted before it was submitted"):
        Sweep(sweep.directory, FakeScheduler)
    with pytest.raises(LaunchError, match="there is no such sweep"):
        Sweep(SweepDirectory(Path("jobs/none")), FakeScheduler)
    sweep.directory.record.write_text(json.dumps({"name": "lr"}))
    with pytest.raises(LaunchError, match="was written by another program"):
        Sweep(sweep.directory, FakeScheduler)


def test_nothing_is_written_for_a_dry_run(new_sweep, tmp_path):
    new = new_sweep()
    assert "#SBATCH --array=0-5%2\n" in new.script
    assert new_sweep("local").script is None
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"name": "../lr"}, ConfigError, "--name ../lr: a sweep's name"),
        ({"name": "x" * 57}, ConfigError, "up to 56"),
        ({"at_once": 0}, ConfigError, "--at-once 0: must be at least 1"),
        ({"array": "0-3"}, ConfigError, "--array: a sweep is an array of its own"),
        ({"supervise": False}, ConfigError, "--no-supervise"),
        ({"axes": ["parallel.tp=1,2"]}, ConfigError, "point 1 (parallel.tp=2): 1 node x 1 rank: "),
        ({"axes": ["optim.lrr=1,2"]}, ConfigError, "point 0 (optim.lrr=1): "),
    ],
)
def test_wrong_sweeps_are_refused_before_anything_is_written(new_sweep, tmp_path, options, error, problem):
    with pytest.raises(error) as raised:
        new_sweep(**options)
    assert problem in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_name_of_its_own(new_sweep):
    new = new_sweep(name=None)
    assert new.record.name == "demo-sweep"
    new.write()
    assert new_sweep(name=None).record.name == "demo-sweep-2"


def test_more_points_than_an_array_of_this_slurm_can_have(new_sweep, scheduler, monkeypatch):
    said = "AccountingStorageHost   = localhost\nMaxArraySize            = 5\n"
    monkeypatch.setattr(make, "ask", lambda *command: Answer(0, said, ""))
    with pytest.raises(LaunchError, match="6 points, and this Slurm's arrays have at most 5 tasks"):
        new_sweep().check(lambda launcher: scheduler)
    monkeypatch.setattr(make, "ask", lambda *command: Answer(0, said.replace("= 5", "= 6"), ""))
    new_sweep().check(lambda launcher: scheduler)
    with pytest.raises(LaunchError, match="nowhere"):
        new_sweep(partition="nowhere").check(lambda launcher: scheduler)


def test_a_point_that_by_plan_does_not_fit_is_named(new_sweep):
    axes = ["phases.0.batch_size=8,400_000"]
    with pytest.raises(LaunchError, match=r"point 1 \(phases.0.batch_size=400000\): .*does not fit"):
        new_sweep(axes=axes, mem="4G").check_fit()
    assert "fits" in new_sweep(mem="4G").check_fit()


def test_a_task_finds_its_job_and_does_nothing_if_that_has_finished(sweep, monkeypatch, capsys):
    called = []
    monkeypatch.setattr(task.os, "execv", lambda program, words: called.append(words))
    task.run_task(sweep.directory.root, 3)
    assert called[0][1:] == ["-m", "glmforge", "supervise", str(job_of(sweep, 3).root)]
    made_attempt(job_of(sweep, 3), 1, cause=Cause.PREEMPTED)
    task.run_task(sweep.directory.root, 3)
    assert len(called) == 2
    made_attempt(job_of(sweep, 3), 2, cause=Cause.FINISHED)
    with pytest.raises(SystemExit) as ended:
        task.run_task(sweep.directory.root, 3)
    assert ended.value.code == 0
    assert len(called) == 2
    assert "lr-003: has finished already" in capsys.readouterr().err
    with pytest.raises(LaunchError, match="has no point 6; it has 6, counted from 0"):
        task.run_task(sweep.directory.root, 6)


class Here(FakeScheduler):
    """Its jobs have ended, with the causes that it is given, when they are looked at for the second time."""

    def __init__(self, causes):
        super().__init__()
        self.causes, self.order, self.most, self.running = causes, [], 0, {}

    def take(self, job):
        self.order.append(job.name)
        number = self.submit(job, job.read().launch)
        self.running[number] = job
        self.most = max(self.most, len(self.running))
        return note_submission(job, number, "local")

    def pause(self):
        number, job = self.running.popitem()
        self.end(number, State.ENDED)
        made_attempt(
            job, len(job.read_attempts()) + 1, cause=self.causes.get(job.name, Cause.FINISHED), submission=number
        )


@pytest.fixture
def here(new_sweep, monkeypatch):
    """A sweep that is run from here, and its scheduler."""
    new = new_sweep("local")
    new.write()
    scheduler = Here({"lr-002": Cause.CODE})
    monkeypatch.setattr(work, "hand_over", scheduler.take)
    monkeypatch.setattr(work, "Runner", lambda **fields: _runner(pause=scheduler.pause, **fields))
    return Sweep(new.directory, lambda launcher: scheduler), scheduler


def _runner(**fields):
    from glmforge_ops.jobs.in_turn import Runner

    return Runner(**fields)


def test_run_from_here_so_many_at_once(here):
    sweep, scheduler = here
    ended = sweep.run_here(lambda job, words: None)
    assert scheduler.most == 2
    assert sorted(scheduler.order) == [f"lr-{number:03d}" for number in range(6)]
    assert [state for name, state in ended.items() if name != "lr-002"] == [JobState.FINISHED] * 5
    assert ended["lr-002"] is JobState.FAILED

    scheduler.causes, scheduler.order = {}, []
    sweep.run_here(lambda job, words: None)
    assert scheduler.order == ["lr-002"]
    assert {result.state for result in sweep.results()} == {"finished"}


def test_a_sweep_that_is_cancelled_starts_nothing_further(here):
    sweep, scheduler = here
    pause = scheduler.pause

    def cancelled():
        sweep.directory.own.event("cancelled", "the whole sweep")
        pause()

    scheduler.pause = cancelled
    ended = sweep.run_here(lambda job, words: None)
    assert scheduler.order == ["lr-000", "lr-001"]
    assert list(ended.values()).count(JobState.NEW) == 4


def test_a_damaged_job_is_told_beside_the_others(sweep, scheduler):
    job_of(sweep, 1).description.write_text("garbage: [")
    results = sweep.results()
    assert results[1].state == "damaged"
    assert "job.yaml" in results[1].why
    assert results[0].state == "not submitted"
