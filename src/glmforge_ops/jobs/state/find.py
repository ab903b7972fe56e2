"""The jobs of a directory: each with its state, however it was launched.

A job whose files are damaged is told as damaged, with the reason, beside the others. Each scheduler is asked once for
all of its jobs.
"""

import difflib
import fnmatch
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config.launch import JOB_NAME, Launcher
from glmforge.errors import LaunchError
from glmforge.files import shown
from glmforge_ops.jobs.job import JOBS_VARIABLE, JobDirectory
from glmforge_ops.jobs.schedulers.base import Scheduler, Seen, State
from glmforge_ops.jobs.state.job_files import read_job
from glmforge_ops.jobs.state.job_state import JobFiles, JobState, changed_at, state_of

SchedulerOf = Callable[[Launcher], Scheduler]
"""The scheduler that a launcher hands its jobs to."""


@dataclass(frozen=True)
class Job:
    """A job as it is found. `files` is None if it is damaged: `why` says of what; `seen` is its newest submission."""

    directory: JobDirectory
    state: JobState
    why: str
    files: JobFiles | None = None
    seen: Seen | None = None

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def is_to_cancel(self) -> bool:
        """Whether a cancellation changes anything: it is not over, or its start was refused.

        False for one that is damaged: it cannot be noted there.
        """
        if self.files is None or self.files.submission is None:
            return False
        return not self.state.is_over or (self.files.was_refused(self.seen) and not self.files.cancelled)


def job_names(root: Path) -> list[str]:
    """Of all jobs in `root`, damaged ones too. Raises `LaunchError` if there is no such directory."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if JOB_NAME.fullmatch(entry.name) and entry.is_dir()]
    except OSError as error:
        raise LaunchError(
            f"{shown(root)}: no jobs can be found there ({error.strerror}); name their directory with --jobs-dir or "
            f"{JOBS_VARIABLE}"
        ) from None
    return sorted(name for name in names if _is_job(JobDirectory(root / name)))


def chosen_names(root: Path, patterns: Sequence[str]) -> list[str]:
    """The jobs that the names and patterns ('lr-*') mean, each once. Raises `LaunchError` for one that means none."""
    names = job_names(root)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)  # a name has none of a pattern's characters
        if not found:
            raise LaunchError(_no_such_job(root, pattern, names))
        chosen |= dict.fromkeys(found)
    return list(chosen)


def job_directory(root: Path, name: str) -> JobDirectory:
    """Raises `LaunchError` if there is no job of this name, with the nearest one."""
    names = job_names(root)
    if name not in names:
        raise LaunchError(_no_such_job(root, name, names))
    return JobDirectory(root / name)


def find_jobs(root: Path, names: Iterable[str], scheduler_of: SchedulerOf) -> list[Job]:
    """The jobs of these names, in their order, each with its state. Asks every scheduler once."""
    read = {name: read_job(JobDirectory(root / name)) for name in names}
    told = _ask([files for files in read.values() if isinstance(files, JobFiles)], scheduler_of)
    return [_found(JobDirectory(root / name), files, told.get(name, "")) for name, files in read.items()]


def _is_job(directory: JobDirectory) -> bool:
    return any(os.path.lexists(path) for path in (directory.description, directory.submissions, directory.attempts))


def _no_such_job(root: Path, pattern: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(pattern, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "'glmforge jobs list' shows those that there are"
    kind = "no job matches" if set(pattern) & set("*?[") else "there is no job"
    return f"{shown(root)}: {kind} {shown(pattern)}; {hint}"


def _ask(files: Sequence[JobFiles], scheduler_of: SchedulerOf) -> dict[str, Seen | str]:
    """Job -> its newest submission, as its scheduler tells of it, or in words why it does not."""
    ids: dict[Launcher, dict[str, str]] = {}
    for job in files:
        if job.submission is not None:
            ids.setdefault(job.description.launch.launcher, {})[job.directory.name] = job.submission.id
    found: dict[str, Seen | str] = {}
    for launcher, of_job in ids.items():
        told = _look(scheduler_of, launcher, set(of_job.values()))
        found |= {name: told if isinstance(told, str) else told[each] for name, each in of_job.items()}
    return found


def _look(scheduler_of: SchedulerOf, launcher: Launcher, ids: set[str]) -> Mapping[str, Seen] | str:
    try:
        told = scheduler_of(launcher).look(ids)
    except LaunchError as error:
        return str(error)
    why = f"{launcher} does not know it any more"
    forgotten = {each: Seen(each, State.UNKNOWN, why, is_forgotten=True) for each in ids}
    return forgotten | told


def _found(directory: JobDirectory, files: JobFiles | str, told: Seen | str) -> Job:
    if isinstance(files, str):
        return Job(directory, JobState.DAMAGED, files)
    seen = told if isinstance(told, Seen) else None
    return Job(directory, *state_of(files, told), files, seen)


def as_dict(job: Job) -> dict[str, Any]:
    """For programs; what is not known is None. Times are UTC, ISO 8601."""
    row: dict[str, Any] = {"name": job.name, "state": job.state.value, "why": job.why}
    if (files := job.files) is None:
        return row
    attempt, submission, launch = files.attempt, files.submission, files.description.launch
    seen_nodes = list(job.seen.nodes) if job.seen is not None else []
    return row | {
        "launcher": launch.launcher,
        "id": submission.id if submission else None,
        "num_nodes": launch.nodes,
        "nodes": seen_nodes or (attempt.nodes if attempt else []),
        "attempt": attempt.number if attempt else None,
        "step": files.step,
        "num_steps": files.num_steps,
        "part_of": files.description.part_of,
        "task": files.description.task,
        "created": files.description.created.isoformat(),
        "submitted": submission.time.isoformat() if submission else None,
        "changed": changed_at(files, job.seen).isoformat(),
    }
