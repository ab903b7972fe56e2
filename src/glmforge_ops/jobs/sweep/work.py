"""A sweep submitted, run from here, looked at and cancelled. What it is stands in its record, its state in its jobs.

Under Slurm a sweep is one array, and each submission of a point is a task of it, `12_3`. Submitted again, an array of
those tasks follows that have not finished and are not on their way. One who is killed while submitting leaves an array
that is not noted, or not in all of its jobs: whoever submits next notes it. Elsewhere the points are started from here,
some at a time, by whoever holds the lease on the sweep's directory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from glmforge.observe.run import write_text
from glmforge.runtime.lease import Lease
from glmforge_ops.jobs.cancelled import CANCELLED, Cancelling
from glmforge_ops.jobs.do_all import do_all
from glmforge_ops.jobs.in_turn import Runner, Turn, is_to_submit
from glmforge_ops.jobs.state.find import Job, SchedulerOf, find_jobs
from glmforge_ops.jobs.state.job_state import JobState
from glmforge_ops.jobs.submit.hand_over import hand_over, id_of_task, note_submission, submit
from glmforge_ops.jobs.submit.unnoted import submissions_in
from glmforge_ops.jobs.sweep.make import ARRAYS, array_launch, array_script
from glmforge_ops.jobs.sweep.record import PointRecord, SweepDirectory, SweepRecord
from glmforge_ops.jobs.sweep.results import Result, read_results

Tell = Callable[[str, str], None]


@dataclass
class Sweep:
    """A sweep that has been written."""

    directory: SweepDirectory
    scheduler_of: SchedulerOf

    def __post_init__(self) -> None:
        self.record: SweepRecord = self.directory.read()

    @property
    def is_array(self) -> bool:
        return self.record.launcher in ARRAYS

    def jobs(self) -> list[Job]:
        """The points' jobs, by number."""
        return find_jobs(self.directory.root.parent, [point.job for point in self.record.points], self.scheduler_of)

    def results(self) -> list[Result]:
        """A row for each point, by number."""
        return [_result(point, job) for point, job in zip(self.record.points, self.jobs(), strict=True)]

    def submit_array(self, *, failed_only: bool = False) -> list[str]:
        """Hand over what has not finished and is not on its way; the names of those jobs, none if there are none.

        Raises `HeldError` while somebody else does the same.
        """
        with Lease(self.directory.root, "glmforge sweep"):
            self._note_what_was_not()
            chosen = [point for point, job in self._pairs() if _is_to_run(job, failed_only=failed_only)]
            if chosen:
                self._submit(chosen)
        return [point.job for point in chosen]

    def run_here(self, tell: Tell, *, failed_only: bool = False) -> dict[str, JobState]:
        """Run what has not finished, so many at once as the sweep says; the state of each point's job at the end.

        Raises `HeldError` if the sweep is run by somebody else.
        """
        with Lease(self.directory.root, "glmforge sweep"):
            chosen = [point for point, job in self._pairs() if not failed_only or _is_to_run(job, failed_only=True)]
            began = len(self.directory.own.read_events())
            self.directory.own.event("started", f"{len(chosen)} points, from here")
            runner = Runner(
                look=self._states,
                submit=self._start,
                cancel=lambda name: self._cancel([job for job in self.jobs() if job.name == name], Cancelling()),
                tell=tell,
                is_wanted=lambda: (
                    not any(event.get("event") == CANCELLED for event in self.directory.own.read_events()[began:])
                ),
            )
            return runner.run([Turn(point.job) for point in chosen], self.record.at_once or 1)

    def cancel(self) -> list[str]:
        """Cancel every point that waits or runs; their names. Points that have not begun do not begin."""
        cancelling = Cancelling()
        cancelling.note_whole(self.directory.own, "the whole sweep")
        live = [job for job in self.jobs() if not job.state.is_over and job.state is not JobState.DAMAGED]
        self._cancel(live, cancelling)
        return [job.name for job in live]

    def _pairs(self) -> list[tuple[PointRecord, Job]]:
        return list(zip(self.record.points, self.jobs(), strict=True))

    def _states(self, names: Sequence[str]) -> dict[str, tuple[JobState, str]]:
        found = find_jobs(self.directory.root.parent, names, self.scheduler_of)
        return {job.name: (job.state, job.why) for job in found}

    def _start(self, name: str) -> None:
        hand_over(next(self.directory.point(point) for point in self.record.points if point.job == name))

    def _submit(self, chosen: Sequence[PointRecord]) -> None:
        own, tasks = self.directory.own, [point.task for point in chosen]
        description = self.directory.point(chosen[0]).read()
        write_text(own.script, array_script(self.directory, description, self.record, tasks))
        launch = array_launch(description.launch, tasks, self.record.at_once)
        own.event("submitting", f"{len(chosen)} points", tasks=tasks)
        scheduler, mend = self.scheduler_of(self.record.launcher), f"glmforge sweep resubmit {self.record.name}"
        submit(scheduler, own, launch, lambda number: self._note(number, tasks), mend)

    def _note(self, number: str, tasks: Sequence[int]) -> None:
        """In the sweep's events first, which say what is to be noted in the points' jobs."""
        self.directory.own.event("submitted", f"{len(tasks)} points as {number}", submission=number, tasks=list(tasks))
        self._note_in_jobs(number, tasks)

    def _note_in_jobs(self, number: str, tasks: Sequence[int]) -> None:
        for point in self.record.points:
            job, id_ = self.directory.point(point), id_of_task(number, point.task)
            if point.task in tasks and id_ not in {submission.id for submission in job.read_submissions()}:
                note_submission(job, id_, self.record.launcher, again=bool(job.read_attempts()))

    def _note_what_was_not(self) -> None:
        """Of a submission that was interrupted: Slurm may have the array, or the notes may have ended in the middle."""
        told = [event for event in self.directory.own.read_events() if event["event"] in ("submitting", "submitted")]
        if not told:
            return
        last, known = told[-1], {event.get("submission") for event in told}
        if last["event"] == "submitted":
            self._note_in_jobs(last["submission"], last["tasks"])
        elif lost := [number for number in submissions_in(self.directory.own) if number not in known]:
            self._note(lost[-1], last["tasks"])

    def _cancel(self, jobs: Sequence[Job], cancelling: Cancelling) -> None:
        """An array as a whole, if all of its tasks are to end. What cannot be cancelled keeps nothing else from it."""
        scheduler = self.scheduler_of(self.record.launcher)
        ids = {}
        for job in jobs:
            if job.files is None or job.files.submission is None:
                continue
            ids[job.name] = job.files.submission.id
            cancelling.note(job.directory, job.files.submission)
        arrays = {id_.partition("_")[0] for id_ in ids.values()} if self.is_array else set(ids.values())
        do_all([*(partial(scheduler.cancel, number) for number in sorted(arrays)), cancelling.finish])


def _is_to_run(job: Job, *, failed_only: bool) -> bool:
    if failed_only:
        return job.state is JobState.FAILED
    return is_to_submit(job)


def _result(point: PointRecord, job: Job) -> Result:
    description = None if job.files is None else job.files.description
    found = read_results(None if description is None else description.run)
    damaged = found.pop("why", "")
    told = {
        "state": job.state.value,
        "why": job.why or damaged,
        "num_steps": None if job.files is None else job.files.num_steps,
    }
    return Result(task=point.task, job=point.job, settings=dict(point.settings), **(found | told))
