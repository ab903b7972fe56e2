"""A job that is cancelled: noted before its scheduler is told, so that no supervisor starts it again in between.

The note counts for the submission that it names: who submits the job again wants it to run.
"""

import getpass
import socket
from pathlib import Path

from glmforge.errors import LaunchError
from glmforge.files import parse_json, read_end, shown
from glmforge.launch.job import JobDirectory, Submission
from glmforge.launch.state import CANCELLED

_END_BYTES = 1 << 16


def note_cancelled(job: JobDirectory, submission: Submission) -> None:
    """From now on no supervisor of this submission starts another attempt."""
    job.event(CANCELLED, f"by {who()}", submission=submission.id)


def is_cancelled(job: JobDirectory, submission: Submission | None = None) -> bool:
    """Whether the newest submission, or the one that is given, was cancelled: the newest events say so."""
    if submission is None:
        submissions = job.read_submissions()
        submission = submissions[-1] if submissions else None
    if submission is None or not job.events.exists():
        return False
    lines = read_end(job.events, error=LaunchError, max_bytes=_END_BYTES).split(b"\n")
    named = [line for line in lines if b'"' + CANCELLED.encode() + b'"' in line]
    return any(_is_of(job.events, line, submission.id) for line in named)


def who() -> str:
    """The person at this terminal, for others to ask."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name} on {socket.gethostname()}"


def _is_of(path: Path, line: bytes, submission: str) -> bool:
    try:
        event = parse_json(line.decode(), dict, source=shown(path), error=LaunchError)
    except (LaunchError, UnicodeDecodeError):  # cut, or another line that has the word
        return False
    return event.get("event") == CANCELLED and event.get("submission") == submission
