"""What a task of a sweep's array does: the point of its number, under the supervisor, unless it has finished."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from glmforge.errors import LaunchError
from glmforge.files import shown
from glmforge_ops.jobs.job import Cause, JobDirectory
from glmforge_ops.jobs.sweep.record import SweepDirectory


def run_task(directory: Path, number: int) -> NoReturn:
    """Become the supervisor of the point's job. Exits with status 0 if the job has finished.

    Raises `LaunchError` if the sweep has no point of this number.
    """
    job = job_of_task(directory, number)
    if has_finished(job):
        print(f"{job.name}: has finished already", file=sys.stderr)
        sys.exit(0)
    command = [sys.executable, "-m", "glmforge", "supervise", str(job.root)]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)


def job_of_task(directory: Path, number: int) -> JobDirectory:
    """Raises `LaunchError` if there is none."""
    sweep = SweepDirectory(directory.absolute())
    record = sweep.read()
    for point in record.points:
        if point.task == number:
            return sweep.point(point)
    raise LaunchError(f"{shown(directory)}: has no point {number}; it has {len(record.points):,}, counted from 0")


def has_finished(job: JobDirectory) -> bool:
    """By its files: whether the newest attempt came to the run's end."""
    attempts = job.read_attempts()
    verdict = attempts[-1].verdict if attempts else None
    return verdict is not None and verdict.cause is Cause.FINISHED
