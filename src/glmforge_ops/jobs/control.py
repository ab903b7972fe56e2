"""Ending a job, and submitting it again."""

from dataclasses import dataclass, field

from glmforge.errors import LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.cancelled import Cancelling, who
from glmforge_ops.jobs.job import Submission
from glmforge_ops.jobs.refused import tell_waiting
from glmforge_ops.jobs.schedulers.base import Seen
from glmforge_ops.jobs.state.find import Job, SchedulerOf
from glmforge_ops.jobs.state.job_state import JobFiles, JobState
from glmforge_ops.jobs.submit.hand_over import hand_over


@dataclass(frozen=True)
class Resubmitted:
    """What came of it, and in words what could not be done beside it."""

    submission: Submission
    warnings: list[str] = field(default_factory=list)


def cancel(job: Job, scheduler_of: SchedulerOf) -> str:
    """End a job, wherever it is; what was done, in words. Raises `LaunchError` if its scheduler does not
    do it, or that cannot be noted.

    Its ranks are told as before a preemption: a training run saves first, as far as the scheduler gives it time.
    """
    if (files := job.files) is None:
        raise LaunchError(f"{job.name}: cannot be cancelled: {job.why}")
    if files.submission is None or not job.is_to_cancel:
        return f"{job.name}: is {job.state} already"
    cancelling = Cancelling()
    cancelling.note(job.directory, files.submission)
    launcher = files.description.launch.launcher
    scheduler_of(launcher).cancel(files.submission.id)
    cancelling.finish()
    was = "" if job.state is not JobState.UNKNOWN else f"; whether it still ran is not known ({job.why})"
    return f"{job.name}: cancelled ({launcher} {files.submission.id}, it was {job.state}){was}"


def resubmit(job: Job, scheduler_of: SchedulerOf, *, force: bool = False) -> Resubmitted:
    """Submit a job again as it was; a training run goes on from its newest checkpoint. Raises `LaunchError`.

    One whose start Slurm refused, or that it holds for that, is queued again under its number, where that can be done:
    what waits for it goes on waiting.

    Args:
        force: even if nobody can tell whether it has ended.
    """
    if (files := job.files) is None:
        raise LaunchError(f"{job.name}: cannot be submitted: {job.why}")
    if files.submission is not None and job.seen is not None and files.was_refused(job.seen):
        warnings = _queued_again(files, files.submission, job.seen, scheduler_of)
        if warnings is not None:
            return Resubmitted(files.submission, warnings)
    if job.state is JobState.UNKNOWN and not force:
        raise LaunchError(
            f"{job.name}: whether it has ended is not known ({job.why}); if you know that it has, give --force"
        )
    if not job.state.is_over and job.state is not JobState.UNKNOWN:
        raise LaunchError(
            f"{job.name}: is {job.state} ({files.submission.id if files.submission else 'not submitted'}); wait until "
            f"it ends, or 'glmforge jobs cancel {job.name}' first"
        )
    if not job.directory.script.exists():
        raise LaunchError(f"{job.directory.script}: is missing; 'glmforge launch' makes the job anew, by another name")
    launch = files.description.launch
    scheduler_of(launch.launcher).check(launch)
    return Resubmitted(hand_over(job.directory, again=True))


def _queued_again(files: JobFiles, submission: Submission, seen: Seen, scheduler_of: SchedulerOf) -> list[str] | None:
    """Put it back under its number, which lifts a cancellation; warnings, or None if its scheduler has forgotten it."""
    if not scheduler_of(files.description.launch.launcher).again(seen):
        return None
    try:
        files.directory.event("submitted again", f"by {who()}", submission=submission.id)
    except RunFileError as error:
        raise LaunchError(f"{submission.id} is in the queue again, but that could not be noted: {error}") from error
    return tell_waiting(files.directory, submission.id)
