"""Made-up jobs: the files that launchers, supervisors and ranks leave, and a scheduler that says what it is told to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.observe.job_records import (
    AttemptRecord,
    Cause,
    JobDescription,
    JobDirectory,
    RankRecord,
    Submission,
    Verdict,
)
from glmforge_ops.jobs.new_job import create_job
from glmforge_ops.jobs.schedulers.base import Seen, State

BEGAN = datetime.fromisoformat("2026-03-01T12:00:00+00:00")


def at(seconds: float) -> datetime:
    """So long after the made-up jobs began."""
    return BEGAN + timedelta(seconds=seconds)


def made_job(
    root: Path,
    name: str = "air",
    *,
    submission: str | None = "17",
    launch: dict[str, Any] | None = None,
    **description: Any,
) -> JobDirectory:
    """A job of two nodes under Slurm, submitted once unless `submission` is None."""
    job = JobDirectory(root / name)
    options = LaunchConfig.model_validate({"launcher": "slurm", "nodes": 2, "ranks_per_node": 2} | (launch or {}))
    given = {"kind": "script", "command": ["python", "train.py"], "directory": Path("/work"), "created": BEGAN}
    create_job(job, JobDescription(name=name, launch=options, **(given | description)), "the name is taken")
    if submission is not None:
        job.add_submission(Submission(id=submission, launcher=options.launcher, time=BEGAN))
    return job


def made_attempt(
    job: JobDirectory,
    number: int = 1,
    *,
    cause: Cause | None = None,
    began: float = 10.0,
    ended: float | None = None,
    verdict: dict[str, Any] | None = None,
    **fields: Any,
) -> AttemptRecord:
    """An attempt on node1 and node2 that goes on, unless it is given an end or the cause of one; times in seconds."""
    if cause is not None and ended is None:
        ended = began + 100
    told = None if cause is None else Verdict(cause=cause, **({"why": f"made up: {cause}"} | (verdict or {})))
    usual = {"submission": "17", "nodes": ["node1", "node2"], "ranks_per_node": 2, "starter": "srun"}
    record = AttemptRecord(
        number=number,
        address="node1",
        port=29_500,
        began=at(began),
        ended=None if ended is None else at(ended),
        verdict=told,
        **(usual | fields),
    )
    record.write(job.attempt(number).record)
    return record


def made_rank(
    job: JobDirectory, attempt: int, rank: int, *, lines: Sequence[str] | None = None, **fields: Any
) -> RankRecord:
    """A rank of two per node, with a log if `lines` are given."""
    usual = {"local_rank": rank % 2, "node": f"node{rank // 2 + 1}", "host": f"node{rank // 2 + 1}", "pid": 100 + rank}
    record = RankRecord(rank=rank, **({"began": at(12)} | usual | fields))
    directory = job.attempt(attempt)
    record.write(directory.rank(rank))
    if lines is not None:
        directory.log(rank).write_text("".join(f"{line}\n" for line in lines))
    return record


@dataclass
class MadeScheduler:
    """Knows what it is told, counts the questions, and remembers what it was asked to end."""

    known: dict[str, Seen] = field(default_factory=dict)
    name: str = "slurm"
    broken: str | None = None
    asked: list[set[str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def know(self, id_: str, state: State, **fields: Any) -> None:
        self.known[id_] = Seen(id_, state, **fields)

    def check(self, launch: LaunchConfig) -> None:
        self._answer()

    def submit(self, job: JobDirectory, launch: LaunchConfig, *, after: Sequence[str] = (), array: str = "") -> str:
        self._answer()
        self.submitted.append(job.name)
        id_ = str(1000 + len(self.submitted))
        self.know(id_, State.WAITING)
        return id_

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        self._answer()
        self.asked.append(set(ids))
        return {id_: self.known[id_] for id_ in self.asked[-1] if id_ in self.known}

    def cancel(self, submission: str) -> None:
        self._answer()
        self.cancelled.append(submission)
        self.know(submission, State.CANCELLED)

    def release(self, submission: str) -> None:
        self._answer()
        self.released.append(submission)
        self.know(submission, State.WAITING)

    def unnoted(self, job: JobDirectory) -> list[str]:
        return []

    def of(self, launcher: str) -> "MadeScheduler":
        """As `scheduler_of`."""
        assert launcher == self.name
        return self

    def _answer(self) -> None:
        if self.broken is not None:
            raise LaunchError(self.broken)
