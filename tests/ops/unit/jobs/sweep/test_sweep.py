"""Sweeps written, submitted as an array, submitted again, run from here and cancelled."""

import json
from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.config.launch import LaunchConfig
from glmforge.errors import ConfigError, LaunchError
from glmforge.observe.job_records import Cause, JobDirectory
from glmforge.runtime.lease import HeldError, Lease
from glmforge_ops.jobs import several
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.state import JobState
from glmforge_ops.jobs.submit import note_submission
from glmforge_ops.jobs.sweep.points import expand
from glmforge_ops.jobs.sweep.sweep import Sweep, array_of, make_sweep
from helpers.fake_scheduler import FakeScheduler
from helpers.made_jobs import made_attempt


@pytest.fixture
def new_sweep(tmp_path, monkeypatch):
    """Makes a sweep of six points; nothing is written."""
    monkeypatch.chdir(tmp_path)

    def new(launcher="slurm", at_once=2, name="lr", axes=("optim.lr=1e-3,2e-3,3e-3", "seed=1,2"), **launch):
        overrides = ["output_dir=out/base", *launch.pop("overrides", ())]
        options = LaunchConfig(launcher=launcher, **launch)
        return make_sweep(name, "demo", overrides, expand(axes), options, tmp_path / "jobs", at_once)

    return new


@pytest.fixture
def scheduler():
    return FakeScheduler()


@pytest.fixture
def sweep(new_sweep, scheduler):
    """Written, under Slurm."""
    new = new_sweep()
    new.write()
    return Sweep(new.root, lambda launcher: scheduler)


def submit(sweep):
    """Names of the points that were submitted."""
    before = {name: len(sweep.directory(name).read_submissions()) for name in sweep.names}
    sweep.submit(lambda name, words: None)
    return [name for name in sweep.names if len(sweep.directory(name).read_submissions()) > before[name]]


def job_of(sweep, number):
    return sweep.directory(sweep.names[number])


def end(sweep, scheduler, number, cause, state):
    id_ = job_of(sweep, number).read_submissions()[-1].id
    scheduler.end(id_, state)
    made_attempt(job_of(sweep, number), len(job_of(sweep, number).read_attempts()) + 1, cause=cause, submission=id_)


def finish(sweep, scheduler, number):
    end(sweep, scheduler, number, Cause.FINISHED, State.COMPLETED)


def fail(sweep, scheduler, number):
    end(sweep, scheduler, number, Cause.CODE, State.FAILED)


def test_each_point_is_a_job_and_all_are_one_array(sweep, scheduler, tmp_path):
    assert submit(sweep) == [f"lr-{number:03d}" for number in range(6)]
    assert scheduler.arrays == {"1": "0-5%2"}
    assert "#SBATCH --array=0-5%2\n" in scheduler.scripts["1"]
    assert f"supervise {tmp_path}/jobs/lr-\"$(printf '%03d' " in scheduler.scripts["1"]
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
    submit(sweep)
    finish(sweep, scheduler, 0)
    fail(sweep, scheduler, 1)
    fail(sweep, scheduler, 4)
    assert submit(sweep) == ["lr-001", "lr-004"]
    assert scheduler.arrays["2"] == "1,4%2"
    assert [job_of(sweep, number).read_submissions()[-1].id for number in range(6)] == [
        "1_0",
        "2_1",
        "1_2",
        "1_3",
        "2_4",
        "1_5",
    ]
    assert submit(sweep) == []
    assert len(scheduler.scripts) == 2


def test_what_the_scheduler_has_forgotten_is_submitted_again(sweep, scheduler):
    submit(sweep)
    finish(sweep, scheduler, 3)
    scheduler.after.clear()
    assert submit(sweep) == ["lr-000", "lr-001", "lr-002", "lr-004", "lr-005"]


def test_a_submission_that_fails_leaves_a_sweep_to_be_submitted(sweep, scheduler):
    scheduler.is_down = True
    with pytest.raises(LaunchError, match="nothing was submitted"):
        submit(sweep)
    assert {job.state for job in sweep.jobs()} == {JobState.NEW}
    scheduler.is_down = False
    assert len(submit(sweep)) == 6


@pytest.mark.parametrize("number", [None, 0, 5])
def test_an_array_that_cannot_be_noted_is_cancelled(sweep, scheduler, number):
    """In the sweep's own events, or in a point's job."""
    events = (sweep.own if number is None else job_of(sweep, number)).events
    real = scheduler.submit

    def fills_the_disk(job, launch, **options):
        events.unlink(missing_ok=True)
        events.mkdir()
        return real(job, launch, **options)

    scheduler.submit = fills_the_disk
    with pytest.raises(LaunchError, match=r"^slurm 1 was cancelled, since it could not be noted: "):
        submit(sweep)
    assert scheduler.cancelled == ["1"]
    assert {scheduler.state(f"1_{number}") for number in range(6)} == {State.CANCELLED}
    scheduler.submit = real
    events.rmdir()
    assert len(submit(sweep)) == 6
    assert [job_of(sweep, number).read_submissions()[-1].id for number in range(6)] == [f"2_{n}" for n in range(6)]


def test_killed_while_it_was_noted_the_rest_is_noted(sweep, scheduler):
    submit(sweep)
    for number in (2, 5):
        job_of(sweep, number).submissions.unlink()
    scheduler.lost = {"lr": ["1"]}
    assert submit(sweep) == ["lr-002", "lr-005"], "noted"
    assert list(scheduler.arrays) == ["1"]
    assert [job_of(sweep, number).read_submissions()[-1].id for number in range(6)] == [f"1_{n}" for n in range(6)]
    assert len(job_of(sweep, 0).read_submissions()) == 1


def test_killed_before_it_was_noted_the_array_is_found(sweep, scheduler):
    launch = job_of(sweep, 0).read().launch
    scheduler.submit(sweep.own, launch, array="0-4")
    scheduler.lost = {"lr": ["1"]}
    assert len(submit(sweep)) == 6
    assert job_of(sweep, 4).read_submissions()[-1].id == "1_4"
    assert scheduler.arrays == {"1": "0-4", "2": "5%2"}
    assert submit(sweep) == []


def test_one_that_cannot_be_cancelled_keeps_none_of_the_others_running(sweep, scheduler, monkeypatch):
    submit(sweep)
    fail(sweep, scheduler, 1)
    assert submit(sweep) == ["lr-001"]
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
    submit(sweep)
    finish(sweep, scheduler, 0)
    assert len(sweep.cancel()) == 5
    assert scheduler.cancelled == ["1"]
    assert [job.state for job in sweep.jobs()] == [JobState.FINISHED] + [JobState.CANCELLED] * 5
    assert sweep.cancel() == []


def test_a_name_that_is_taken_leaves_nothing_behind(new_sweep, tmp_path):
    JobDirectory(tmp_path / "jobs" / "lr-004").root.mkdir(parents=True)
    with pytest.raises(LaunchError, match="lr-004"):
        new_sweep().write()
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["lr-004"]


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
        ({"launcher": "mpi", "hosts": ["a"]}, ConfigError, "need the supervisor, which --launcher mpi does not have"),
        ({"axes": ["parallel.tp=1,2"]}, ConfigError, "point 1 (parallel.tp=2): 1 node x 1 rank: "),
        ({"axes": ["optim.lrr=1,2"]}, ConfigError, "point 0 (optim.lrr=1): "),
        ({"axes": ["seed=1,2", "output_dir=same"]}, ConfigError, "the sweep sets output_dir; leave it out"),
        ({"axes": ["seed=1,1"]}, ConfigError, "are the same run"),
        ({"axes": ["model.num_hidden_layers=4,5", "model=tiny"]}, ConfigError, "are the same run"),
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


def test_a_point_that_by_plan_does_not_fit_is_named(new_sweep):
    axes = ["phases.0.batch_size=8,400_000"]
    with pytest.raises(LaunchError, match=r"point 1 \(phases.0.batch_size=400000\): .*does not fit"):
        new_sweep(axes=axes, mem="4G").check_fit()
    assert "fits" in new_sweep(mem="4G").check_fit()


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
    monkeypatch.setattr(several, "submit", scheduler.take)
    monkeypatch.setattr(several, "pause", lambda: scheduler.pause())
    return Sweep(new.root, lambda launcher: scheduler), scheduler


def test_run_from_here_so_many_at_once(here):
    sweep, scheduler = here
    ended = sweep.run(lambda job, words: None)
    assert scheduler.most == 2
    assert sorted(scheduler.order) == [f"lr-{number:03d}" for number in range(6)]
    assert [state for name, state in ended.items() if name != "lr-002"] == [JobState.FINISHED] * 5
    assert ended["lr-002"] is JobState.FAILED

    scheduler.causes, scheduler.order = {}, []
    sweep.run(lambda job, words: None)
    assert scheduler.order == ["lr-002"]
    assert {result.state for result in sweep.results()} == {"finished"}


def test_a_sweep_that_is_cancelled_starts_nothing_further(here):
    sweep, scheduler = here
    pause = scheduler.pause

    def cancelled():
        sweep.own.event("cancelled", "the whole sweep")
        pause()

    scheduler.pause = cancelled
    ended = sweep.run(lambda job, words: None)
    assert scheduler.order == ["lr-000", "lr-001"]
    assert list(ended.values()).count(JobState.NEW) == 4


def test_a_damaged_job_is_told_beside_the_others(sweep, scheduler):
    job_of(sweep, 1).description.write_text("garbage: [")
    results = sweep.results()
    assert results[1].state == "damaged"
    assert "job.yaml" in results[1].why
    assert results[0].state == "not submitted"


def test_each_point_has_places_of_its_own(new_sweep):
    apart = ["checkpoint.dir=/fast/ckpt", "observe.tensorboard_dir=/fast/tb"]
    config = new_sweep(overrides=apart, axes=["optim.lr=1e-3,2e-3"]).jobs[1].config
    same = load_config(
        "demo",
        [
            *("optim.lr=2e-3", "name=lr-001", "output_dir=out/lr-001"),
            *("checkpoint.dir=/fast/ckpt/lr-001", "observe.tensorboard_dir=/fast/tb/lr-001"),
        ],
    )
    assert config == same


def test_a_mistake_of_all_points_is_reported_without_a_point(new_sweep):
    with pytest.raises(ConfigError) as raised:
        new_sweep(overrides=["optim.lrr=1"])
    assert "point" not in str(raised.value)


def test_two_at_once_are_told_apart_and_a_sweep_that_was_not_written_to_its_end_is_named(sweep, scheduler, new_sweep):
    with Lease(sweep.root, "another"), pytest.raises(HeldError, match="in use by 'another'"):
        submit(sweep)
    with pytest.raises(LaunchError, match="'glmforge sweep resubmit lr'"):
        new_sweep().write()
    assert scheduler.scripts == {}
    (sweep.root / "sweep.json").write_text(json.dumps({"name": "lr"}))
    with pytest.raises(LaunchError, match="was written by another program"):
        Sweep(sweep.root, FakeScheduler)
    (sweep.root / "sweep.json").unlink()
    with pytest.raises(LaunchError, match="interrupted before it was submitted"):
        Sweep(sweep.root, FakeScheduler)
    with pytest.raises(LaunchError, match="no such sweep"):
        Sweep(Path("jobs/none"), FakeScheduler)


def test_an_array_of_tasks():
    assert [array_of(tasks, 2) for tasks in (range(8), [5, 0, 1, 2], [1, 3])] == ["0-7%2", "0-2,5%2", "1,3%2"]
    assert array_of([4, 5], None) == "4-5"
