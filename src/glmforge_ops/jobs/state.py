"""The state of a job, from its files and from what its scheduler reports.

The scheduler knows whether a submission waits or runs, but forgets it minutes after its end, and counts a job that its
supervisor stopped as one that succeeded or failed. The files have every attempt and why it ended, but not that a
machine vanished. So: while the scheduler has the job, it says whether the job waits or runs, and the files say how far
it is; once it has ended, or is forgotten, the last attempt's verdict says how.
"""

from dataclasses import dataclass
from enum import StrEnum

from glmforge.observe.job_records import AttemptRecord, Cause, JobDescription, JobDirectory, Submission
from glmforge.runtime.lease import Claim
from glmforge.runtime.process import is_alive
from glmforge_ops.jobs.schedulers.base import Seen, State


class JobState(StrEnum):
    """Of a job, for all launchers."""

    NEW = "not submitted"
    WAITING = "waiting"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUSPENDED = "suspended"
    ENDING = "ending"
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Its scheduler has forgotten it or does not answer, and its files do not say that it has ended."""
    DAMAGED = "damaged"
    """Its files cannot be read."""

    @property
    def is_over(self) -> bool:
        """Whether it may be submitted again."""
        return self in _OVER


_OVER = {JobState.NEW, JobState.FINISHED, JobState.STOPPED, JobState.CANCELLED, JobState.FAILED}
_SYSTEM_HOLDS = {"launchfailedrequeuedheld", "jobholdmaxrequeue"}


@dataclass(frozen=True)
class JobFiles:
    """What a job's files say.

    Attributes:
        submission, attempt: the newest.
        cancelled: a person has cancelled the newest submission.
        holder: its supervisor, now or the last.
        step, num_steps: steps that the job has done, and all of them, where that is known.
        trains: the newest attempt has done a step.
        starts: see `JobDirectory.starts`, and the newest attempt's.
    """

    directory: JobDirectory
    description: JobDescription
    submission: Submission | None
    attempt: AttemptRecord | None
    cancelled: bool
    holder: Claim | None
    step: int | None
    num_steps: int | None
    trains: bool
    starts: set[tuple[str, int]]

    @property
    def own_attempt(self) -> AttemptRecord | None:
        """The newest, if it is of the newest submission."""
        if self.attempt is None or self.submission is None:
            return self.attempt
        newer = self.attempt.began >= self.submission.time
        return self.attempt if newer or self.attempt.submission == self.submission.id else None

    def is_refused(self, seen: Seen | None) -> bool:
        """Whether Slurm counts it as failed, or holds it, after a start in which nothing of the job ran.

        Of an array and its tasks that is not known: False.
        """
        launch = self.description.launch
        if seen is None or launch.launcher != "slurm" or launch.array or "_" in seen.id:
            return False
        failed = seen.state in (State.FAILED, State.NODE_FAILED)
        return is_held_by_slurm(seen) or (failed and (seen.id, seen.restarts) not in self.starts)


def is_held_by_slurm(seen: Seen) -> bool:
    """Whether Slurm itself holds the job since a start failed; a person's holds have other reasons."""
    return seen.state is State.HELD and "".join(seen.reason.lower().split()) in _SYSTEM_HOLDS


def state_of(files: JobFiles, seen: Seen | str) -> tuple[JobState, str]:
    """The job's state, and why it waits, restarts or has failed.

    `seen` is its newest submission, or in words why its scheduler reports nothing.
    """
    if files.submission is None:
        return JobState.NEW, "it was written, but not submitted"
    if isinstance(seen, str) or seen.state is State.UNKNOWN:
        return _by_files(files, seen)
    if seen.state.is_over:
        return (JobState.CANCELLED, "on request") if files.cancelled else _ended(files, seen)
    if files.cancelled:
        return JobState.ENDING, "cancelled"
    if files.is_refused(seen):
        return JobState.HELD, f"Slurm holds it since a start failed on a node, see 'sinfo -R': {seen.reason}"
    if seen.state is State.RUNNING:
        return _running(files)
    return JobState(seen.state.value), seen.reason  # waiting, held, suspended, ending


def _running(files: JobFiles) -> tuple[JobState, str]:
    attempt = files.own_attempt
    if attempt is None:
        return JobState.STARTING, ""
    if attempt.ended is not None or attempt.verdict is not None:
        finished = attempt.verdict is not None and attempt.verdict.cause is Cause.FINISHED
        return (JobState.ENDING if finished else JobState.RESTARTING), _why(attempt)
    if not files.trains:
        return JobState.STARTING, f"attempt {attempt.number} has made no step yet"
    return JobState.RUNNING, ""


def _ended(files: JobFiles, seen: Seen) -> tuple[JobState, str]:
    """The scheduler says that it is over; the last attempt knows better how."""
    attempt = files.own_attempt
    if files.is_refused(seen):
        reason = f" ({seen.reason})" if seen.reason else ""
        return JobState.FAILED, f"it ended before its script began: Slurm refused this start{reason}"
    if attempt is not None and attempt.verdict is not None:
        return _by_verdict(attempt)
    if seen.state is State.COMPLETED:
        return JobState.FINISHED, ""
    if seen.state is State.CANCELLED:
        return JobState.CANCELLED, seen.reason or "through the scheduler"
    if seen.state is State.ENDED and not files.description.launch.supervise:
        return JobState.STOPPED, "its process has ended, and how is not recorded; see its logs"
    cut_off = "before its ranks were started" if attempt is None else f"in the middle of attempt {attempt.number}"
    words = f"it ended {cut_off}" if seen.state in (State.FAILED, State.ENDED) else seen.state.value
    return JobState.FAILED, ": ".join(filter(None, [words, seen.reason]))


def _by_files(files: JobFiles, seen: Seen | str) -> tuple[JobState, str]:
    """The scheduler has forgotten the job, or does not answer."""
    reason = seen if isinstance(seen, str) else seen.reason
    is_forgotten = isinstance(seen, Seen) and seen.is_forgotten
    if (holder := files.holder) is not None and not holder.released:
        lives = is_alive(holder.holder)
        # A claim on another machine is left over if the scheduler has forgotten the job.
        if lives or (lives is None and not is_forgotten):
            state, why = _running(files)
            beat = f"{reason}; its supervisor's last heartbeat: {holder.last_beat}"
            return state, "; ".join(filter(None, [why, beat]))
    if files.cancelled:
        return JobState.CANCELLED, "on request"
    attempt = files.own_attempt
    if attempt is None or attempt.ended is None or attempt.verdict is None:
        return JobState.UNKNOWN, reason
    if attempt.verdict.cause is Cause.PREEMPTED:
        return JobState.UNKNOWN, f"{reason}; it was preempted, and has not come back"
    return _by_verdict(attempt)


def _by_verdict(attempt: AttemptRecord) -> tuple[JobState, str]:
    cause = attempt.verdict and attempt.verdict.cause
    if cause is Cause.FINISHED:
        return JobState.FINISHED, ""
    stopped = cause in (Cause.STOPPED, Cause.PREEMPTED)  # preempted, and it did not come back
    return (JobState.STOPPED if stopped else JobState.FAILED), _why(attempt)


def _why(attempt: AttemptRecord) -> str:
    """In one line: how an attempt ended."""
    if attempt.verdict is None:
        return f"attempt {attempt.number} ended" + ("" if attempt.status is None else f" with status {attempt.status}")
    return f"{attempt.verdict.cause}: {attempt.verdict.why}"


def step_words(files: JobFiles | None) -> str:
    """'120/1000'; '-' if no step is known."""
    if files is None or files.step is None:
        return "-"
    return str(files.step) if files.num_steps is None else f"{files.step}/{files.num_steps}"
