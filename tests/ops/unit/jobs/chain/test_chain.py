"""Chains submitted, gone on with and cancelled, with a scheduler of the test's own."""

import pytest

from glmforge.errors import LaunchError
from glmforge.observe.job_records import Cause, JobDirectory
from glmforge.runtime.lease import HeldError, Lease
from glmforge_ops.jobs import several
from glmforge_ops.jobs.chain import chain as chain_module
from glmforge_ops.jobs.chain.chain import Chain, as_rows, lines_of, make_chain
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.state import JobState
from glmforge_ops.jobs.submit import note_submission
from helpers.fake_scheduler import FakeScheduler
from helpers.made_jobs import made_attempt

CHAIN = """
name: life
launch: {launcher: LAUNCHER}
stages:
  a: {command: one}
  b: {needs: [a], command: two, outputs: {file: b.txt}}
  c: {needs: [a], command: three}
  d: {needs: [b, c], command: four}
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes the chain, on a launcher."""
    monkeypatch.chdir(tmp_path)

    def make(launcher="slurm", text=CHAIN):
        (tmp_path / "life.yaml").write_text(text.replace("LAUNCHER", launcher))
        new = make_chain(tmp_path / "life.yaml", tmp_path / "jobs", tmp_path)
        new.write()
        return new.root

    return make


@pytest.fixture
def scheduler():
    return FakeScheduler()


@pytest.fixture
def chain(made, scheduler):
    return Chain(made(), lambda launcher: scheduler)


def submit(chain):
    told = {}
    chain.submit(lambda stage, words: told.setdefault(stage, words))
    return told


def states(chain):
    return {name: job.state for name, job in chain.by_stage().items()}


def numbers(chain):
    return {row["stage"]: row["id"] for row in as_rows(chain)}


def finish(chain, scheduler, stage):
    number = numbers(chain)[stage]
    scheduler.end(number, State.COMPLETED)
    ended(job_of(chain, stage), Cause.FINISHED, "all ranks ended", number)


def fail(chain, scheduler, stage):
    number = numbers(chain)[stage]
    scheduler.end(number, State.FAILED)
    ended(job_of(chain, stage), Cause.CODE, "it broke", number)


def ended(job, cause, why, submission):
    number = len(job.read_attempts()) + 1
    made_attempt(job, number, cause=cause, verdict={"why": why}, submission=submission)


def job_of(chain, stage):
    return chain.directory(chain.stages[stage].job)


def test_all_stages_are_submitted_at_once_and_wait_for_what_they_need(chain, scheduler):
    assert submit(chain) == {
        "a": "submitted as 1",
        "b": "submitted as 2, after a",
        "c": "submitted as 3, after a",
        "d": "submitted as 4, after b, c",
    }
    assert scheduler.after == {"1": (), "2": ("1",), "3": ("1",), "4": ("2", "3")}
    assert states(chain) == {
        "a": JobState.STARTING,
        "b": JobState.WAITING,
        "c": JobState.WAITING,
        "d": JobState.WAITING,
    }


def test_submitting_again_changes_nothing(chain, scheduler):
    submit(chain)
    told = submit(chain)
    assert len(scheduler.scripts) == 4
    assert scheduler.cancelled == []
    assert told["d"] == "is waiting as 4"


def test_a_stage_that_failed_is_submitted_again_with_all_that_waited_for_it(chain, scheduler):
    submit(chain)
    finish(chain, scheduler, "a")
    finish(chain, scheduler, "c")
    fail(chain, scheduler, "b")
    jobs = chain.by_stage()
    assert "it broke" in jobs["b"].why
    assert jobs["d"].state is JobState.HELD
    assert chain.hint("d", jobs) == "cannot start: b is failed; fix that, then 'glmforge chain resume life'"
    told = submit(chain)
    assert told == {
        "a": "has finished already",
        "b": "submitted as 5",
        "c": "has finished already",
        "d": "submitted as 6, after b",
    }
    assert scheduler.cancelled == ["4"]
    assert scheduler.after["5"] == ()
    assert scheduler.after["6"] == ("5",)


def test_a_stage_that_is_requeued_keeps_what_waits_for_it(chain, scheduler):
    submit(chain)
    ended(job_of(chain, "a"), Cause.PREEMPTED, "a warning came", "1")
    submit(chain)
    assert len(scheduler.scripts) == 4
    assert scheduler.cancelled == []


def test_a_stage_that_was_submitted_again_by_hand_is_followed(chain, scheduler):
    submit(chain)
    fail(chain, scheduler, "a")
    job = job_of(chain, "a")
    note_submission(job, scheduler.submit(job, job.read().launch), "slurm")
    told = submit(chain)
    assert told["a"] == "is starting as 5"
    assert told["b"] == "submitted as 6, after a"
    assert scheduler.after["6"] == ("5",)
    assert scheduler.after["8"] == ("6", "7")
    assert set(scheduler.cancelled) == {"2", "3", "4"}


@pytest.mark.parametrize("after", [0, 2, 4])
def test_killed_after_any_submission_the_rest_is_submitted(chain, scheduler, after):
    """The scheduler takes so many and then is gone, and with it whoever asked."""
    real = scheduler.submit

    def submit_some(job, launch, **options):
        if len(scheduler.scripts) == after:
            raise KeyboardInterrupt
        return real(job, launch, **options)

    scheduler.submit = submit_some
    if after < 4:
        with pytest.raises(KeyboardInterrupt):
            submit(chain)
    scheduler.submit = real
    submit(Chain(chain.root, lambda launcher: scheduler))
    assert scheduler.after == {"1": (), "2": ("1",), "3": ("1",), "4": ("2", "3")}


def test_what_waits_for_a_stage_that_is_submitted_now_is_submitted_too(chain, scheduler, monkeypatch):
    """Although Slurm has not yet noticed that it waits in vain."""
    submit(chain)
    fail(chain, scheduler, "a")
    monkeypatch.setattr(chain_module, "_waits_in_vain", lambda job: False)
    told = submit(chain)
    assert told["b"] == "submitted as 6, after a"
    assert scheduler.after["8"] == ("6", "7")


def test_killed_before_the_note_the_submission_is_adopted(chain, scheduler):
    submit(chain)
    job_of(chain, "b").submissions.unlink()
    scheduler.lost = {"life-b": ["2"]}
    told = submit(chain)
    assert told["b"] == "was submitted before, as 2"
    assert len(scheduler.scripts) == 4
    assert scheduler.cancelled == []


def test_an_adopted_stage_that_waits_for_what_has_failed_is_submitted_again(chain, scheduler):
    submit(chain)
    job_of(chain, "b").submissions.unlink()
    fail(chain, scheduler, "a")
    scheduler.lost = {"life-b": ["2"]}
    told = submit(chain)
    assert told["a"] == "submitted as 5"
    assert told["b"] == "was submitted before, as 2"
    assert scheduler.after["6"] == ("5",)
    assert "2" in scheduler.cancelled


def test_what_the_scheduler_has_forgotten_is_submitted_again(chain, scheduler):
    submit(chain)
    scheduler.after.clear()
    told = submit(chain)
    assert told["a"] == "submitted as 5"
    assert scheduler.after["8"] == ("6", "7")


def refuses(scheduler, monkeypatch, *numbers):
    """Has the scheduler not cancel these."""
    cancel = scheduler.cancel

    def some(number):
        if number in numbers:
            raise LaunchError(f"scancel {number}: Access denied")
        cancel(number)

    monkeypatch.setattr(scheduler, "cancel", some)


def test_one_that_cannot_be_cancelled_keeps_none_of_the_others_running(chain, scheduler, monkeypatch):
    submit(chain)
    refuses(scheduler, monkeypatch, "4")
    with pytest.raises(LaunchError, match=r"^scancel 4: Access denied$"):
        chain.cancel()
    assert scheduler.cancelled == ["3", "2", "1"]


def test_cancelled_from_the_end_to_the_beginning(chain, scheduler):
    submit(chain)
    finish(chain, scheduler, "a")
    assert chain.cancel() == ["b", "c", "d"]
    assert scheduler.cancelled == ["4", "3", "2"]
    assert states(chain)["d"] is JobState.CANCELLED
    assert chain.cancel() == []
    told = submit(chain)
    assert told["a"] == "has finished already"
    assert told["d"] == "submitted as 7, after b, c"


def test_two_starts_at_once_are_told_apart(chain, scheduler, made):
    with Lease(chain.root, "another"), pytest.raises(HeldError, match="in use by 'another'"):
        submit(chain)
    assert scheduler.scripts == {}
    with pytest.raises(LaunchError, match="the name is taken; choose another one, or 'glmforge chain resume life'"):
        made()


def test_a_name_that_is_taken_leaves_nothing_behind(made, tmp_path):
    JobDirectory(tmp_path / "jobs" / "life-c").root.mkdir(parents=True)
    with pytest.raises(LaunchError, match="life-c"):
        made()
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["life-c"]


def test_outputs_that_a_finished_stage_did_not_write_are_told(chain, scheduler, tmp_path):
    submit(chain)
    finish(chain, scheduler, "a")
    finish(chain, scheduler, "b")
    assert "b: its outputs file are missing" in lines_of(chain)
    (tmp_path / "b.txt").touch()
    assert not any(line.startswith("b: ") for line in lines_of(chain))


def test_a_scheduler_that_refuses_a_stage(tmp_path, monkeypatch, scheduler):
    monkeypatch.chdir(tmp_path)
    text = CHAIN.replace("LAUNCHER", "slurm").replace("{command: one}", "{command: one, launch: {partition: nowhere}}")
    (tmp_path / "life.yaml").write_text(text)
    with pytest.raises(LaunchError, match="stage a: partition: there is no 'nowhere'"):
        make_chain(tmp_path / "life.yaml", tmp_path / "jobs", tmp_path).check(lambda launcher: scheduler, plan=True)


def test_with_other_launchers_stages_run_one_after_the_other(made, monkeypatch):
    chain = Chain(made("local"), lambda launcher: scheduler)
    scheduler, order = EndsAtOnce(), []
    monkeypatch.setattr(several, "submit", lambda job: scheduler.take(job, order))
    assert not chain.is_queued
    states = chain.run(lambda stage, words: None)
    assert order == ["life-a", "life-b", "life-c", "life-d"]
    assert set(states.values()) == {JobState.FINISHED}
    assert chain.run(lambda stage, words: None) == states
    assert len(order) == 4


class EndsAtOnce(FakeScheduler):
    """Its jobs have finished when they are looked at."""

    def take(self, job, order):
        order.append(job.name)
        number = self.submit(job, job.read().launch)
        submission = note_submission(job, number, "local")
        self.end(number, State.ENDED)
        ended(job, Cause.FINISHED, "all ranks ended", number)
        return submission
