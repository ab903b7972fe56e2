"""What a job's own files tell of it: its submissions, its newest attempt, its steps.

Only ends of files are read, so that it costs the same after a thousand attempts.
"""

import re
from pathlib import Path

from pydantic import ValidationError

from glmforge.config.tree import quick_value
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import read_end, read_text, shown
from glmforge.runtime.lease import newest_claim
from glmforge_ops.jobs.cancelled import is_cancelled
from glmforge_ops.jobs.job import SUPERVISOR_LEASE, AttemptRecord, JobDescription, JobDirectory, Submission
from glmforge_ops.jobs.last_records import last_records, newest_records
from glmforge_ops.jobs.refused import starts_of
from glmforge_ops.jobs.state.job_state import JobFiles

_LINE_BYTES = 1 << 15
_MAX_DIGITS = 18


def read_job(directory: JobDirectory) -> JobFiles | str:
    """What a job's files tell; in words what is damaged, if something is."""
    try:
        return _read(directory)
    except GlmforgeError as error:
        return str(error)
    except OSError as error:
        return f"{shown(error.filename or directory.root)}: cannot be read ({error.strerror})"


def _read(directory: JobDirectory) -> JobFiles:
    description = _read_description(directory)
    if description.name != directory.name:
        raise LaunchError(
            f"{shown(directory.description)}: is of the job {description.name}; give the directory that name again"
        )
    submissions = [Submission.of(row, shown(directory.submissions)) for row in last_records(directory.submissions)]
    attempt = newest_attempt(directory)
    step, trains = _steps(directory, description, attempt)
    return JobFiles(
        directory=directory,
        description=description,
        submissions=submissions,
        attempt=attempt,
        cancelled=bool(submissions) and is_cancelled(directory, submissions[-1]),
        holder=newest_claim(directory.root, name=SUPERVISOR_LEASE),
        step=step,
        trains=trains,
        num_steps=_num_steps(directory.run_config),
        starts=starts_of(directory, [attempt]),
    )


def _read_description(directory: JobDirectory) -> JobDescription:
    if not directory.description.exists():
        raise LaunchError(f"{shown(directory.description)}: is missing; the job cannot be submitted again")
    value = quick_value(read_text(directory.description, error=LaunchError))
    try:
        return JobDescription.model_validate(value)
    except ValidationError:
        return directory.read()  # the same, slowly, and it says what is wrong


def newest_attempt(directory: JobDirectory) -> AttemptRecord | None:
    """The last attempt that began. Raises `LaunchError` if its record is damaged."""
    for number in reversed(attempt_numbers(directory)):
        record = AttemptRecord.read(directory.attempt(number).record)
        if record is not None:
            return record
    return None


def attempt_numbers(directory: JobDirectory) -> list[int]:
    """Of the directories of attempts, in order."""
    try:
        names = [path.name for path in directory.attempts.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if re.fullmatch(r"\d{4,9}", name, re.ASCII))


def _steps(
    directory: JobDirectory, description: JobDescription, attempt: AttemptRecord | None
) -> tuple[int | None, bool]:
    """Steps that the job has done, as far as anybody has told, and whether its newest attempt has done one."""
    if attempt is None:
        return None, False
    first = attempt.first_step or 0
    own = [attempt.last_step, _last_told_step(directory.attempt(attempt.number).log(0))]
    before = [attempt.first_step]
    if description.run is not None:
        metrics = description.run / "metrics.jsonl"
        recorded = _last_recorded_step(metrics)
        (own if recorded is not None and _changed(metrics) >= attempt.began.timestamp() else before).append(recorded)
    trains = any(step is not None and step > first for step in own)
    return max((step for step in [*own, *before] if step is not None), default=None), trains


def _last_told_step(log: Path) -> int | None:
    """The step in the last line of a rank's log: behind its time and rank."""
    if not log.exists():
        return None
    lines = read_end(log, error=LaunchError, max_bytes=_LINE_BYTES).split(b"\n")
    for line in reversed(lines[:-1]):
        words = line.split(b" ", 3)
        if len(words) > 2 and words[2].isdigit() and len(words[2]) < _MAX_DIGITS:
            return int(words[2])
    return None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _last_recorded_step(metrics: Path) -> int | None:
    """Of the last record that has one and was written whole."""
    steps = (record.get("step") for record in newest_records(metrics))
    return next((step for step in steps if isinstance(step, int)), None)


def _num_steps(run_config: Path) -> int | None:
    """Of all phases, where the run's configuration gives them as steps."""
    if not run_config.exists():
        return None
    run = quick_value(read_text(run_config, error=LaunchError))
    phases = run.get("phases") if isinstance(run, dict) else None
    if not isinstance(phases, list) or not phases:
        return None
    steps = [phase.get("steps") if isinstance(phase, dict) else None for phase in phases]
    known = [number for number in steps if isinstance(number, int)]
    return sum(known) if len(known) == len(phases) else None
