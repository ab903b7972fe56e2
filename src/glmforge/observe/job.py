"""The job that this process is a rank of, if `glmforge launch` has started it, and what the run tells of its time.

A job's supervisor sets the variables below for every rank. A run that finds them notes the job with each start. Every
run appends to `time.jsonl` of its directory where its time goes, with its job if it has one, from which `glmforge jobs
goodput` adds up what was lost, and `glmforge timeline` draws it:

    {"time": ..., "job": "air", "attempt": 2, "event": "joined"}                  all ranks are there, nothing is loaded
    {"time": ..., "job": "air", "attempt": 2, "event": "loaded", "step": 100}     the next thing is step 101
    {"time": ..., "job": "air", "attempt": 2, "step": 105, "steps": 5, "training_s": 4.1, "data_s": 0.2, ...}

Lines are only added: steps that were lost and are trained again stand there twice, which is what they have cost.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from glmforge.observe.record_files import JsonlFile
from glmforge.observe.run import RunDirectory

NAME_VARIABLE = "GLMFORGE_JOB"
ATTEMPT_VARIABLE = "GLMFORGE_ATTEMPT"
DIRECTORY_VARIABLE = "GLMFORGE_JOB_DIRECTORY"


@dataclass(frozen=True)
class JobOfRun:
    """An attempt of a job. `directory` is None if it is not known."""

    name: str
    attempt: int
    directory: Path | None

    @property
    def facts(self) -> dict[str, object]:
        """For the event of the run's start."""
        place = {} if self.directory is None else {"job_directory": str(self.directory)}
        return {"job": self.name, "attempt": self.attempt} | place


def time_line(job: JobOfRun | None, **facts: object) -> dict[str, object]:
    """Of `time.jsonl`, now."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"time": now} | ({} if job is None else {"job": job.name, "attempt": job.attempt}) | facts


def note_time(job: JobOfRun | None, run: Path, **facts: object) -> None:
    """Append a line to the run's `time.jsonl`. Raises `RunFileError` if it cannot be written."""
    with JsonlFile(RunDirectory(run).time) as file:
        file.write(time_line(job, **facts))


def job_of_this_process() -> JobOfRun | None:
    """None if no supervisor has started it."""
    name, attempt = os.environ.get(NAME_VARIABLE), os.environ.get(ATTEMPT_VARIABLE, "")
    if not name or not attempt.isdecimal():
        return None
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return JobOfRun(name, int(attempt), Path(directory) if directory else None)
