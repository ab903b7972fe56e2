"""A job that is cancelled: noted before its scheduler is told, so that no supervisor starts it again in between.

The note counts for the submission that it names, until that is submitted again: who does so wants the job to run.
"""

import getpass
import socket

from glmforge.errors import LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.job import JobDirectory, Submission
from glmforge_ops.jobs.last_records import newest_records

SUBMITTED = ("submitted", "submitted again")
"""Events: a person has the job run, which lifts a cancellation."""

CANCELLED = "cancelled"
"""The event after which no supervisor starts the job again, until it is submitted again."""


class Cancelling:
    """Notes cancellations. What a full disk does not take keeps no job running, and is told when `finish` is called."""

    def __init__(self) -> None:
        self._unnoted: RunFileError | None = None

    def note(self, job: JobDirectory, submission: Submission) -> None:
        """From now on no supervisor of this submission starts another attempt."""
        self.note_whole(job, f"by {who()}", submission=submission.id)

    def note_whole(self, directory: JobDirectory, detail: str, **facts: str) -> None:
        """Of a job, a chain, a sweep."""
        try:
            directory.event(CANCELLED, detail, **facts)
        except RunFileError as error:
            self._unnoted = error

    def finish(self) -> None:
        """Raise `LaunchError` if something could not be noted."""
        if self._unnoted is not None:
            raise LaunchError(
                f"cancelled, but that could not be noted, and a supervisor may not know of it ({self._unnoted})"
            )


def is_cancelled(job: JobDirectory, submission: Submission | None = None) -> bool:
    """Whether the newest submission, or the one that is given, was cancelled: the newest events say so."""
    if submission is None:
        submissions = job.read_submissions()
        submission = submissions[-1] if submissions else None
    if submission is None:
        return False
    decisive = (CANCELLED, *SUBMITTED)
    for event in newest_records(job.events, *decisive):
        if event.get("submission") == submission.id and event.get("event") in decisive:
            return event["event"] == CANCELLED
    return False


def who() -> str:
    """The person at this terminal, for others to ask."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name} on {socket.gethostname()}"
