"""Ending a job, and submitting it again."""

from glmforge.errors import LaunchError
from glmforge.launch.cancel import note_cancelled, who
from glmforge.launch.companion import accompany, dismiss
from glmforge.launch.find import Job, SchedulerOf
from glmforge.launch.hand_over import hand_over
from glmforge.launch.job import Submission
from glmforge.launch.state import JobState


def cancel(job: Job, scheduler_of: SchedulerOf) -> str:
    """End a job, wherever it is; what was done, in words. Raises `LaunchError` if its scheduler does not do it.

    Its ranks are told as before a preemption: a training run saves first, as far as the scheduler gives it time.
    """
    if (files := job.files) is None:
        raise LaunchError(f"{job.name}: cannot be cancelled: {job.why}")
    if files.submission is None or job.state.is_over:
        return f"{job.name}: is {job.state} already"
    note_cancelled(job.directory, files.submission)
    dismiss(job.directory)
    launcher = files.description.launch.launcher
    scheduler_of(launcher).cancel(files.submission.id)
    was = "" if job.state is not JobState.UNKNOWN else f"; whether it still ran is not known ({job.why})"
    return f"{job.name}: cancelled ({launcher} {files.submission.id}, it was {job.state}){was}"


def resubmit(job: Job, scheduler_of: SchedulerOf, *, force: bool = False) -> Submission:
    """Submit a job again as it was; a training run goes on from its newest checkpoint. Raises `LaunchError`.

    One whose start Slurm refused, or that it holds for that, is queued again under its number, where that can be done:
    what waits for it goes on waiting.

    Args:
        force: even if nobody can tell whether it has ended.
    """
    if (files := job.files) is None:
        raise LaunchError(f"{job.name}: cannot be submitted: {job.why}")
    if files.submission is not None and job.seen is not None and files.was_refused(job.seen):
        job.directory.event("submitted again", f"by {who()}", submission=files.submission.id)
        if scheduler_of(files.description.launch.launcher).again(job.seen):
            accompany(job.directory, files.submission)
            return files.submission
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
    submission = hand_over(job.directory, again=True)
    accompany(job.directory, submission)
    return submission
