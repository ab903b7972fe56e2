"""Starts that Slurm refused: the job was given nodes, and no process of ours ever ran on them.

It happens to sound jobs: a node that has just come back refuses the job's credential, a prolog finds a broken disk, a
slurmd does not answer. Slurm counts some of these as a failure of the job, for good ("FAILED", run time 0), and holds
the job after others ("launch failed requeued held"), for ever. Neither is an end that the job has earned: it can be put
back into the queue under its number, a bounded number of times.

A hold by a person, or one that a job was submitted with, is left alone: those have other reasons.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from glmforge.errors import LaunchError
from glmforge.files import parse_json, read_end, shown
from glmforge.launch.job import AttemptRecord
from glmforge.launch.schedulers.base import Seen, State

STARTED = "supervisor started"
"""The event that a supervisor writes first of all: this start was not refused."""

REFUSED, RELEASED = "start refused", "hold released"
"""Events: such a start was found, and the job queued again, or its hold released."""

SUBMITTED = ("submitted", "submitted again")
"""Events: a person has the job run, and refusals before do not count any more."""

_SYSTEM_HOLDS = {"launchfailedrequeuedheld", "jobholdmaxrequeue"}
_END_BYTES = 1 << 16


class Mend(StrEnum):
    """What a job needs."""

    NOTHING = "nothing"  # it is over, or none of this
    REQUEUE = "requeue"
    RELEASE = "release"
    GIVE_UP = "give up"
    LOOK_AGAIN = "look again"  # it waits or runs: nothing now


@dataclass(frozen=True)
class Mending:
    """What to do about a job, and why in words."""

    do: Mend
    why: str


def starts_of(events: Path) -> frozenset[tuple[str, int]]:
    """Of the last supervisors that began: the submission, and how often the scheduler had started it before."""
    if not events.exists():
        return frozenset()
    lines = read_end(events, error=LaunchError, max_bytes=_END_BYTES).split(b"\n")
    found = set()
    for line in lines:
        if b'"' + STARTED.encode() + b'"' not in line:
            continue
        try:
            event = parse_json(line.decode(), dict, source=shown(events), error=LaunchError)
        except (LaunchError, UnicodeDecodeError):  # cut
            continue
        submission, restart = event.get("submission"), event.get("restart")
        if event.get("event") == STARTED and isinstance(submission, str) and isinstance(restart, int):
            found.add((submission, restart))
    return frozenset(found)


def is_refused(seen: Seen, starts: Iterable[tuple[Any, Any]], attempts: Iterable[AttemptRecord | None]) -> bool:
    """Whether Slurm counts the job as failed although its last start never got as far as a supervisor."""
    if seen.state not in (State.FAILED, State.NODE_FAILED):
        return False
    made = {(attempt.submission, attempt.restart) for attempt in attempts if attempt is not None}
    return (seen.id, seen.restarts) not in made | set(starts)


def is_held_by_slurm(seen: Seen) -> bool:
    """Whether Slurm itself holds the job since a start failed."""
    return seen.state is State.HELD and "".join(seen.reason.lower().split()) in _SYSTEM_HOLDS


def mending(
    seen: Seen, events: Sequence[Mapping[str, Any]], attempts: Sequence[AttemptRecord], most: int, *, cancelled: bool
) -> Mending:
    """What a submission needs now; `most`: refused starts in a row before it is given up."""
    starts = [(event.get("submission"), event.get("restart")) for event in events if event.get("event") == STARTED]
    if cancelled:
        return Mending(Mend.NOTHING, "it was cancelled")
    held = is_held_by_slurm(seen)
    if seen.state is State.UNKNOWN:
        return Mending(Mend.NOTHING, f"Slurm tells nothing of it: {seen.reason}")
    if not held and not seen.state.is_over:
        return Mending(Mend.LOOK_AGAIN, f"it is {seen.state}")
    if not held and not is_refused(seen, starts, attempts):
        return Mending(Mend.NOTHING, f"it is over: {seen.state}")
    what = f"Slurm {'holds it' if held else 'ended it before its script ran'} ({seen.reason or seen.state})"
    count = refused_in_a_row(events)
    if count >= most:
        return Mending(Mend.GIVE_UP, f"{what}, after {count} refused starts in a row: supervisor.refused_starts")
    return Mending(Mend.RELEASE if held else Mend.REQUEUE, what)


def refused_in_a_row(events: Iterable[Mapping[str, Any]]) -> int:
    """Refused starts since the last that was not, or since somebody submitted the job."""
    count = 0
    for event in events:
        if event.get("event") in (STARTED, *SUBMITTED):
            count = 0
        elif event.get("event") in (REFUSED, RELEASED):
            count += 1
    return count
