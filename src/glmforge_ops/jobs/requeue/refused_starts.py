"""Starts that Slurm refused: the job was given nodes, and nothing of it ever ran on them.

It happens to sound jobs: a node that has just come back refuses the job's credential, a prolog finds a broken disk, a
slurmd does not answer. Slurm counts some of these as a failure of the job, for good ("FAILED", run time 0), and holds
the job after others ("launch failed requeued held"), for ever. Neither is an end that the job has earned: it can be put
back into the queue under its number, a bounded number of times.

A job whose script ran is another matter, whatever became of it: a directory that is gone, a Python that does not start
or a configuration that cannot be read fail again. So the script leaves a mark before it does anything else. That of an
array leaves none: its tasks that have failed are never taken for refused.

A hold by a person, or one that a job was submitted with, is left alone: those have other reasons.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from glmforge_ops.jobs.job import AttemptRecord, JobDirectory
from glmforge_ops.jobs.last_records import newest_records
from glmforge_ops.jobs.schedulers.base import Seen, State

STARTED = "supervisor started"
"""The event that a supervisor writes first of all."""

REFUSED, RELEASED = "start refused", "hold released"
"""Events: such a start was found, and the job queued again, or its hold released."""

SUBMITTED = ("submitted", "submitted again")
"""Events: a person has the job run, and refusals before do not count any more."""

_SYSTEM_HOLDS = {"launchfailedrequeuedheld", "jobholdmaxrequeue"}
_MARK = ".script-ran-"
_MARKED = re.compile(r"\.script-ran-(\d{1,12})-(\d{1,9})", re.ASCII)
"""An empty file that the script of a job leaves first of all (script/templates/slurm_script_ran.jinja)."""


class Mend(StrEnum):
    """What a job needs."""

    NOTHING = "nothing"  # it is over, or none of this
    REQUEUE = "requeue"
    RELEASE = "release"
    GIVE_UP = "give up"
    LOOK_AGAIN = "look again"  # it waits or runs, or Slurm does not answer: nothing now


@dataclass(frozen=True)
class Mending:
    """What to do about a job, and why in words."""

    do: Mend
    why: str


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

    Of an array's task nobody knows: False.
    """
    failed = seen.state in (State.FAILED, State.NODE_FAILED)
    return failed and not is_task(seen.id) and (seen.id, seen.restarts) not in starts


def is_task(submission: str) -> bool:
    """Whether this is a task of an array of Slurm's, such as 12_3."""
    return "_" in submission


def is_held_by_slurm(seen: Seen) -> bool:
    """Whether Slurm itself holds the job since a start failed."""
    return seen.state is State.HELD and "".join(seen.reason.lower().split()) in _SYSTEM_HOLDS


def mending(
    seen: Seen, starts: Collection[tuple[str, int]], events: Sequence[Mapping[str, Any]], most: int, *, cancelled: bool
) -> Mending:
    """What a submission needs now. `starts`: as for `is_refused`; `most`: refused starts in a row that are borne."""
    if cancelled:
        return Mending(Mend.NOTHING, "it was cancelled")
    held = is_held_by_slurm(seen)
    if seen.state is State.UNKNOWN:
        nothing = Mend.NOTHING if seen.is_forgotten else Mend.LOOK_AGAIN
        return Mending(nothing, f"Slurm tells nothing of it: {seen.reason}")
    if not held and not seen.state.is_over:
        return Mending(Mend.LOOK_AGAIN, f"it is {seen.state}")
    if not held and not is_refused(seen, starts):
        return Mending(Mend.NOTHING, f"it is over: {seen.state}")
    what = f"Slurm {'holds it' if held else 'ended it before its script ran'} ({seen.reason or seen.state})"
    count = refused_in_a_row(events)
    return given_up(what, count) if count >= most else Mending(Mend.RELEASE if held else Mend.REQUEUE, what)


def given_up(what: str, count: int) -> Mending:
    """After so many refused starts in a row."""
    return Mending(Mend.GIVE_UP, f"{what}, after {count} refused starts in a row: supervisor.refused_starts")


def unheard_before(seen: Seen, starts: Collection[tuple[str, int]]) -> int:
    """As `refused_in_a_row` where nothing can be noted: starts before this one, since the last of which anything ran.

    Those that ended while they waited for their nodes count, too.
    """
    return seen.restarts - 1 - max((restart for id_, restart in starts if id_ == seen.id), default=-1)


def refused_in_a_row(events: Iterable[Mapping[str, Any]]) -> int:
    """Refused starts since the last that was not, or since somebody submitted the job."""
    count = 0
    for event in events:
        if event.get("event") in (STARTED, *SUBMITTED):
            count = 0
        elif event.get("event") in (REFUSED, RELEASED):
            count += 1
    return count
