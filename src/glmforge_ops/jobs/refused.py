"""Starts that Slurm refused: the job was given nodes, and nothing of it ever ran on them.

It happens to sound jobs: a node that has just come back refuses the job's credential, or a prolog fails. Slurm counts
some of these as a failure of the job ("FAILED", run time 0), and holds the job after others ("launch failed requeued
held"). `jobs` names them, and `jobs resubmit` puts the job back into the queue under its number.

A job whose script ran is another matter: it would fail again. So the script leaves a mark before it does anything else.
That of an array leaves none: its tasks that have failed are never taken for refused. A hold by a person, or one that a
job was submitted with, is left alone.
"""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress

from glmforge.errors import LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.job import AttemptRecord, JobDirectory
from glmforge_ops.jobs.last_records import newest_records
from glmforge_ops.jobs.schedulers.base import Seen, State
from glmforge_ops.jobs.schedulers.slurm_again import wait_anew, waiting_in_vain

STARTED = "supervisor started"
"""The event that a supervisor writes first of all."""

_SYSTEM_HOLDS = {"launchfailedrequeuedheld", "jobholdmaxrequeue"}
_MARK = ".script-ran-"
_MARKED = re.compile(r"\.script-ran-(\d{1,12})-(\d{1,9})", re.ASCII)
"""An empty file that the script of a job leaves first of all (script/templates/slurm_script_ran.jinja)."""


def starts_of(job: JobDirectory, attempts: Iterable[AttemptRecord | None]) -> frozenset[tuple[str, int]]:
    """Of the last starts in which something of the job ran: the submission, and how often it was started before.

    Its script says so, and its supervisor, and `attempts`: any of them may be missing, as on a full disk.
    """
    found = {(attempt.submission, attempt.restart) for attempt in attempts if attempt is not None}
    for path in job.root.glob(f"{_MARK}*"):
        if name := _MARKED.fullmatch(path.name):
            found.add((name[1], int(name[2])))
    for event in newest_records(job.events, STARTED):
        submission, restart = event.get("submission"), event.get("restart")
        if event.get("event") == STARTED and isinstance(submission, str) and isinstance(restart, int):
            found.add((submission, restart))
    return frozenset(found)


def is_refused(seen: Seen, starts: Collection[tuple[str, int]]) -> bool:
    """Whether Slurm counts the job as failed although nothing of it ran in its last start; `starts`: see above.

    Of an array's task (12_3) nobody knows: False.
    """
    failed = seen.state in (State.FAILED, State.NODE_FAILED)
    return failed and "_" not in seen.id and (seen.id, seen.restarts) not in starts


def is_held_by_slurm(seen: Seen) -> bool:
    """Whether Slurm itself holds the job since a start failed."""
    return seen.state is State.HELD and "".join(seen.reason.lower().split()) in _SYSTEM_HOLDS


def tell_waiting(job: JobDirectory, submission: str) -> list[str]:
    """Have what waited for the success of a job of Slurm's wait again; in words what could not be told.

    Those are events, too, and no reason not to go on.
    """
    untold = []
    try:
        for number, dependency in waiting_in_vain(submission).items():
            try:
                wait_anew(number, dependency)
            except LaunchError as error:
                fix = f"'scontrol update JobId={number} Dependency={dependency}'"
                untold.append(f"{number} waits for {submission} in vain ({error}); fix it with {fix}")
    except LaunchError as error:
        untold.append(f"what waits for {submission} may wait in vain ({error}); see 'squeue --me'")
    for words in untold:
        with suppress(RunFileError):
            job.event("waits in vain", words, submission=submission)
    return untold
