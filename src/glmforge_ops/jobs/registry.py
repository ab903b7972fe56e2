"""The jobs of a directory: each with its state, for all launchers.

A job whose files are damaged is listed as damaged, with the reason, beside the others. Each scheduler is asked once for
all of its jobs, and only the ends of files are read, so that it costs the same after a thousand attempts.
"""

import difflib
import fnmatch
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glmforge.config.launch import JOB_NAME, Launcher
from glmforge.config.tree import quick_value
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import read_text, shown
from glmforge.observe.job_records import JOBS_VARIABLE, SUPERVISOR_LEASE, AttemptRecord, JobDirectory
from glmforge.observe.record_files import newest_records
from glmforge.runtime.lease import newest_claim
from glmforge_ops.jobs.schedulers.base import Scheduler, Seen, State
from glmforge_ops.jobs.state import JobFiles, JobState, state_of
from glmforge_ops.jobs.supervisor.watch import logged_step

SchedulerOf = Callable[[Launcher], Scheduler]
"""The scheduler that a launcher submits its jobs to."""

_KINDS = {"job": ("job.yaml", "jobs"), "sweep": ("sweep.json", "sweep"), "chain": ("chain.json", "chain")}


@dataclass(frozen=True)
class Job:
    """A job as it is found. `files` is None if it is damaged: `why` says how; `seen` is its newest submission."""

    directory: JobDirectory
    state: JobState
    why: str
    files: JobFiles | None = None
    seen: Seen | None = None

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def submission(self) -> str | None:
        """The newest one's number."""
        return None if self.files is None or self.files.submission is None else self.files.submission.id

    @property
    def is_to_submit(self) -> bool:
        """Whether the job has not finished, and is not on its way.

        If one that its scheduler has forgotten runs after all, its supervisor's lease refuses a second one. One whose
        scheduler does not answer may be on its way.
        """
        if self.state is JobState.UNKNOWN:
            return self.seen is not None and self.seen.is_forgotten
        return self.state.is_over and self.state is not JobState.FINISHED


def jobs_root(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of jobs: as given, else by the variable, else ./jobs."""
    return Path(given or environment.get(JOBS_VARIABLE) or "jobs").absolute()


def job_names(root: Path) -> list[str]:
    """Of all jobs in `root`, damaged ones too. Raises `LaunchError` if there is no such directory."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if JOB_NAME.fullmatch(entry.name) and entry.is_dir()]
    except OSError as error:
        raise LaunchError(
            f"{shown(root)}: cannot be read ({error.strerror}); pass the directory of the jobs with --jobs-dir or "
            f"{JOBS_VARIABLE}"
        ) from None
    return sorted(name for name in names if _is_job(JobDirectory(root / name)))


def chosen_names(root: Path, patterns: Sequence[str]) -> list[str]:
    """The jobs that names and patterns ('lr-*') mean, each once. Raises `LaunchError` for one that means no job."""
    names = job_names(root)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)  # a name has none of a pattern's characters
        if not found:
            near = difflib.get_close_matches(pattern, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "'glmforge jobs list' shows them all"
            raise LaunchError(f"{shown(root)}: there is no job {shown(pattern)}; {hint}")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def job_directory(root: Path, name: str) -> JobDirectory:
    """Raises `LaunchError` if there is no job of this name, with the nearest one."""
    return JobDirectory(root / chosen_names(root, [name])[0])


def directory_of(root: Path, name: str, kind: Literal["sweep", "chain"]) -> Path:
    """The directory that a sweep or chain of this name has or would have.

    Raises `LaunchError` if it is not a name, or is the name of something else.
    """
    if not JOB_NAME.fullmatch(name):
        raise LaunchError(f"{shown(name) or '(nothing)'}: invalid name of a {kind}; pass that of one in {shown(root)}")
    for other, (file, command) in _KINDS.items():
        if other != kind and (root / name / file).exists():
            raise LaunchError(f"{name}: is a {other}, not a {kind}; see 'glmforge {command} show {name}'")
    return root / name


def find_jobs(root: Path, names: Iterable[str], scheduler_of: SchedulerOf) -> list[Job]:
    """The jobs of these names, in their order, each with its state."""
    read = {name: _read(JobDirectory(root / name)) for name in names}
    seen = _ask([files for files in read.values() if isinstance(files, JobFiles)], scheduler_of)
    found = []
    for name, files in read.items():
        directory = JobDirectory(root / name)
        if isinstance(files, str):
            found.append(Job(directory, JobState.DAMAGED, files))
        else:
            of_job = seen.get(name, "")
            state, why = state_of(files, of_job)
            found.append(Job(directory, state, why, files, of_job if isinstance(of_job, Seen) else None))
    return found


def as_dict(job: Job) -> dict[str, Any]:
    """For programs; what is not known is None. Times are UTC, ISO 8601."""
    row: dict[str, Any] = {"name": job.name, "state": job.state.value, "why": job.why}
    if (files := job.files) is None:
        return row
    attempt, submission, launch = files.attempt, files.submission, files.description.launch
    seen_nodes = list(job.seen.nodes) if job.seen is not None else []
    return row | {
        "launcher": launch.launcher,
        "id": job.submission,
        "num_nodes": launch.nodes,
        "nodes": seen_nodes or (attempt.nodes if attempt else []),
        "attempt": attempt.number if attempt else None,
        "step": files.step,
        "num_steps": files.num_steps,
        "part_of": files.description.part_of,
        "task": files.description.task,
        "created": files.description.created.isoformat(),
        "submitted": submission.time.isoformat() if submission else None,
    }


def _read(directory: JobDirectory) -> JobFiles | str:
    """What a job's files say; in words what is damaged, if something is."""
    try:
        description = directory.read()
        if description.name != directory.name:
            raise LaunchError(f"{shown(directory.description)}: is of the job {description.name}; rename the directory")
        submission = next(reversed(directory.last_submissions()), None)
        attempt = directory.newest_attempt()
        own, before = _steps(directory, description.run, attempt)
        return JobFiles(
            directory=directory,
            description=description,
            submission=submission,
            attempt=attempt,
            cancelled=submission is not None and directory.is_cancelled(submission),
            holder=newest_claim(directory.root, name=SUPERVISOR_LEASE),
            step=max([*own, *before], default=None),
            trains=attempt is not None and any(step > (attempt.first_step or 0) for step in own),
            num_steps=_num_steps(directory.run_config),
            starts=directory.starts() | ({(attempt.submission, attempt.restart)} if attempt is not None else set()),
        )
    except GlmforgeError as error:
        return str(error)
    except OSError as error:
        return f"{shown(error.filename or directory.root)}: cannot be read ({error.strerror})"


def _is_job(directory: JobDirectory) -> bool:
    return any(os.path.lexists(path) for path in (directory.description, directory.submissions, directory.attempts))


def _ask(files: Sequence[JobFiles], scheduler_of: SchedulerOf) -> dict[str, Seen | str]:
    """Job -> its newest submission as its scheduler reports it, or in words why it does not."""
    ids: dict[Launcher, dict[str, str]] = {}
    for job in files:
        if job.submission is not None:
            ids.setdefault(job.description.launch.launcher, {})[job.directory.name] = job.submission.id
    found: dict[str, Seen | str] = {}
    for launcher, of_job in ids.items():
        try:
            seen = scheduler_of(launcher).look(set(of_job.values()))
        except LaunchError as error:
            found |= dict.fromkeys(of_job, str(error))
            continue
        why = f"{launcher} does not know it any more"
        found |= {
            name: seen.get(id_) or Seen(id_, State.UNKNOWN, why, is_forgotten=True) for name, id_ in of_job.items()
        }
    return found


def _steps(directory: JobDirectory, run: Path | None, attempt: AttemptRecord | None) -> tuple[list[int], list[int]]:
    """Steps of the newest attempt, and of those before, as far as anything reports them."""
    if attempt is None:
        return [], []
    own, before = [attempt.last_step, logged_step(directory.attempt(attempt.number))], [attempt.first_step]
    if run is not None:
        metrics = run / "metrics.jsonl"
        steps = (record.get("step") for record in newest_records(metrics))
        recorded = next((step for step in steps if isinstance(step, int)), None)
        is_own = recorded is not None and metrics.stat().st_mtime >= attempt.began.timestamp()
        (own if is_own else before).append(recorded)
    return [step for step in own if step is not None], [step for step in before if step is not None]


def _num_steps(run_config: Path) -> int | None:
    """Of all phases, where the run's configuration gives them as steps."""
    run = quick_value(read_text(run_config, error=LaunchError)) if run_config.exists() else None
    phases = run.get("phases") if isinstance(run, dict) else None
    if not isinstance(phases, list):
        return None
    steps = [phase.get("steps") if isinstance(phase, dict) else None for phase in phases]
    known = [number for number in steps if isinstance(number, int)]
    return sum(known) if known and len(known) == len(steps) else None
