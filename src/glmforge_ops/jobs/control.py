"""Cancelling jobs, and submitting them again."""

import getpass
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from glmforge.errors import GlmforgeError, LaunchError
from glmforge.observe.job_records import CANCELLED, JobDirectory, Submission
from glmforge.runtime.lease import Lease
from glmforge_ops.jobs.registry import Job, SchedulerOf
from glmforge_ops.jobs.schedulers.base import Scheduler
from glmforge_ops.jobs.state import JobState, is_held_by_slurm
from glmforge_ops.jobs.submit import submit

_MOST_SHOWN = 3


def cancel(job: Job, scheduler_of: SchedulerOf) -> str:
    """Cancel a job; what was done, in words. Raises `LaunchError`.

    Its ranks are warned as before a preemption: a training run saves first, as far as the scheduler gives it time.
    """
    if (files := job.files) is None:
        raise LaunchError(f"{job.name}: cannot be cancelled: {job.why}")
    if files.submission is None or job.state.is_over:
        return f"{job.name}: is {job.state} already"
    launcher = files.description.launch.launcher
    cancel_all([job], scheduler_of(launcher))
    was = "" if job.state is not JobState.UNKNOWN else f"; whether it still ran is not known ({job.why})"
    return f"{job.name}: cancelled ({launcher} {files.submission.id}, it was {job.state}){was}"


def cancel_all(
    jobs: Sequence[Job], scheduler: Scheduler, *, group: JobDirectory | None = None, ids: Iterable[str] | None = None
) -> None:
    """Record the cancellation of these jobs, and of the sweep or chain `group`, then have the scheduler end them.

    The record comes first: a supervisor that starts at this moment finds it. An error, such as a full disk, is raised
    when all have been cancelled.

    Args:
        ids: submissions to end in place of the jobs' own: a whole array.
    """
    submitted = {job.submission: job.directory for job in jobs if job.submission is not None}
    actions = [] if group is None else [partial(group.event, CANCELLED, f"as a whole, by {who()}")]
    actions += [partial(each.event, CANCELLED, f"by {who()}", submission=id_) for id_, each in submitted.items()]
    run_all([*actions, *(partial(scheduler.cancel, id_) for id_ in (submitted if ids is None else ids))])


def resubmit(job: Job, scheduler_of: SchedulerOf, *, force: bool = False) -> Submission:
    """Submit a job again as it was; a training run goes on from its newest checkpoint. Raises `LaunchError`.

    One that Slurm holds since a start failed is released, under its number: what waits for it goes on waiting.

    Args:
        force: even if it is not known whether it has ended.
    """
    if (files := job.files) is None:
        raise LaunchError(f"{job.name}: cannot be submitted: {job.why}")
    launch = files.description.launch
    scheduler = scheduler_of(launch.launcher)
    if files.submission is not None and job.seen is not None and is_held_by_slurm(job.seen):
        scheduler.release(files.submission.id)
        job.directory.event("submitted again", f"released by {who()}", submission=files.submission.id)
        return files.submission
    if job.state is JobState.UNKNOWN:
        if not force:
            raise LaunchError(
                f"{job.name}: whether it has ended is not known ({job.why}); if you know that it has, pass --force"
            )
    elif not job.state.is_over:
        first = f"wait until it ends, or 'glmforge jobs cancel {job.name}' first"
        raise LaunchError(f"{job.name}: is {job.state} ({job.submission}); {first}")
    if not job.directory.script.exists():
        raise LaunchError(f"{job.directory.script}: is missing; launch the job under another name")
    scheduler.check(launch)
    with Lease(job.directory.root, "glmforge jobs resubmit"):
        if job.directory.last_submissions()[-1:] != ([] if files.submission is None else [files.submission]):
            raise LaunchError(f"{job.name}: has just been submitted by another process; see 'glmforge jobs show'")
        return submit(job.directory, scheduler=scheduler)


def run_all(actions: Iterable[Callable[[], object]]) -> None:
    """Run all of them, then raise: the only error as it was, several as one `LaunchError`."""
    errors: list[GlmforgeError] = []
    for action in actions:
        try:
            action()
        except GlmforgeError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        rest = f"; and {len(errors) - _MOST_SHOWN} more" if len(errors) > _MOST_SHOWN else ""
        raise LaunchError("; ".join(str(error) for error in errors[:_MOST_SHOWN]) + rest)


def who() -> str:
    """The user, for the record."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown user"
    return f"{name} on {socket.gethostname()}"
