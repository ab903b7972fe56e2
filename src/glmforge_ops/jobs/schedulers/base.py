"""What a scheduler is asked, whichever it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from glmforge.config.launch import LaunchConfig
from glmforge_ops.jobs.job import JobDirectory


class State(StrEnum):
    """Of a submission."""

    WAITING = "waiting"
    HELD = "held"  # waits for a person, or for us: `reason` says why
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    NODE_FAILED = "node failed"
    OUT_OF_MEMORY = "out of memory"
    ENDED = "ended"  # how, only the job's own files say
    UNKNOWN = "unknown"  # the scheduler has forgotten it, or does not answer: `reason` says which

    @property
    def is_over(self) -> bool:
        return self not in _ALIVE


_ALIVE = {State.WAITING, State.HELD, State.RUNNING, State.SUSPENDED, State.ENDING, State.UNKNOWN}


@dataclass(frozen=True)
class Seen:
    """A submission as its scheduler tells of it. Times are None where it does not say."""

    id: str
    state: State
    reason: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    submitted: datetime | None = None
    began: datetime | None = None
    ended: datetime | None = None
    is_forgotten: bool = False
    """Of one that is UNKNOWN: the scheduler was asked, and does not know it any more."""


class Scheduler(Protocol):
    """Takes jobs and runs them. Every method raises `LaunchError` with one line and the mend."""

    name: str

    def check(self, launch: LaunchConfig) -> None:
        """Refuse what it would refuse, or never start: unknown partition, more nodes than there are, no scheduler."""

    def submit(self, job: JobDirectory, launch: LaunchConfig) -> str:
        """Hand over the job's script; its number."""

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        """Asks once for all. Those that it does not know are UNKNOWN."""

    def cancel(self, submission: str) -> None:
        """Ends it; one that has ended already is left."""

    def again(self, seen: Seen) -> bool:
        """Start a submission again under its number: one that was refused, or that is held. False: it cannot be."""
