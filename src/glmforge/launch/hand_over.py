"""A job given to its scheduler, and the note of it in the job's directory."""

import shutil
from collections.abc import Sequence
from typing import NoReturn

from glmforge.config.launch import Launcher
from glmforge.errors import LaunchError
from glmforge.launch.job import JobDirectory, Submission, utc_now
from glmforge.launch.schedulers.base import Scheduler
from glmforge.launch.schedulers.commands import ask
from glmforge.launch.schedulers.here import Here
from glmforge.launch.schedulers.pbs import Pbs
from glmforge.launch.schedulers.slurm import Slurm
from glmforge.observe.record_files import RunFileError

_PROBE_LIMIT_S = 10.0


def scheduler_of(launcher: str) -> Scheduler:
    """What runs the jobs of a launcher."""
    if launcher == "slurm":
        return Slurm()
    return Pbs() if launcher == "pbs" else Here()


def find_launcher(*, has_hosts: bool) -> Launcher:
    """Where jobs go if nobody says it: to the hosts that were given, to Slurm or PBS if they answer here, else here."""
    if has_hosts:
        return "ssh"
    for launcher, submits, asks in (
        ("slurm", "sbatch", ("scontrol", "ping")),
        ("pbs", "qsub", ("qstat", "-Q")),
    ):
        if shutil.which(submits) is not None and _answers(*asks):
            return launcher  # type: ignore[return-value]
    return "local"


def hand_over(job: JobDirectory, *, tasks: Sequence[JobDirectory] = (), again: bool = False) -> Submission:
    """Submit the job's script as it stands, and note the number, in the jobs of an array's tasks, too.

    Raises `LaunchError`: then no job of it is left in the queue.
    """
    launch = job.read().launch
    id_ = scheduler_of(launch.launcher).submit(job, launch)
    try:
        submission = note_submission(job, id_, launch.launcher, again=again)
        for task in tasks:
            number = task.read().task
            assert number is not None, "tasks of an array have numbers"
            note_submission(task, id_of_task(id_, number), launch.launcher)
    except RunFileError as error:
        _cancel_unnoted(launch.launcher, id_, error)
    return submission


def id_of_task(array: str, task: int) -> str:
    """The number of an array's task: 12_3 of Slurm's 12, 12[3].server of PBS's 12[].server."""
    return array.replace("[]", f"[{task}]") if "[]" in array else f"{array}_{task}"


def note_submission(job: JobDirectory, id_: str, launcher: Launcher, *, again: bool = False) -> Submission:
    submission = Submission(id=id_, launcher=launcher, time=utc_now(), again=again)
    job.add_submission(submission)
    job.event("submitted", f"to {launcher} as {id_}", submission=id_)
    return submission


def _cancel_unnoted(launcher: Launcher, id_: str, why: RunFileError) -> NoReturn:
    """It would run, and nobody would know of it."""
    try:
        scheduler_of(launcher).cancel(id_)
    except LaunchError as error:
        raise LaunchError(f"{launcher} {id_} could not be noted, and goes on ({error}): {why}") from why
    raise LaunchError(f"{launcher} {id_} was cancelled, since it could not be noted: {why}") from why


def _answers(*command: str) -> bool:
    try:
        return ask(*command, limit_s=_PROBE_LIMIT_S).status == 0
    except LaunchError:
        return False
