"""A job that is cancelled: noted before its scheduler is told, so that no supervisor starts it again in between.

The note counts for the submission that it names, until that is submitted again: who does so wants the job to run.
"""

import getpass
import socket

from glmforge.launch.job import JobDirectory, Submission
from glmforge.launch.last_records import newest_records
from glmforge.launch.requeue.refused_starts import SUBMITTED

CANCELLED = "cancelled"
"""The event after which no supervisor starts the job again, until it is submitted again."""


def note_cancelled(job: JobDirectory, submission: Submission) -> None:
    """From now on no supervisor of this submission starts another attempt."""
    job.event(CANCELLED, f"by {who()}", submission=submission.id)


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
