"""A job submitted to its scheduler, and its number recorded in the job's directory.

A submission that cannot be recorded is cancelled: nothing runs without a record. If a scheduler's answer was lost, the
job may run all the same; under Slurm `adopted` finds it by its name and directory.
"""

import shutil
from collections.abc import Callable, Sequence
from typing import TypeVar

from glmforge.config.launch import LaunchConfig, Launcher
from glmforge.config.secrets import require_secrets
from glmforge.errors import LaunchError
from glmforge.observe.job_records import JobDirectory, Submission, utc_now
from glmforge_ops.jobs.schedulers.base import NoAnswerError, Scheduler, ask
from glmforge_ops.jobs.schedulers.here import Here
from glmforge_ops.jobs.schedulers.pbs import Pbs
from glmforge_ops.jobs.schedulers.slurm import Slurm

_PROBE_LIMIT_S = 10.0

T = TypeVar("T")


class MayRunError(LaunchError):
    """A job that may run although it is not recorded: it needs its directory."""


def scheduler_of(launcher: str) -> Scheduler:
    """The scheduler of a launcher's jobs."""
    if launcher == "slurm":
        return Slurm()
    return Pbs() if launcher == "pbs" else Here()


def find_launcher(*, has_hosts: bool) -> Launcher:
    """The default: ssh if hosts were given, Slurm or PBS if they answer here, else local."""
    if has_hosts:
        return "ssh"
    if _answers("sbatch", "scontrol", "ping"):
        return "slurm"
    return "pbs" if _answers("qsub", "qstat", "-Q") else "local"


def submit(job: JobDirectory, *, scheduler: Scheduler | None = None, after: Sequence[str] = ()) -> Submission:
    """Submit the job's script as it stands, and record the number.

    Args:
        scheduler: that of the job's launcher by default.
        after: submissions that must have succeeded before it starts.

    Raises `GlmforgeError`, and `MayRunError` if it may run all the same.
    """
    launch = job.read().launch
    scheduler = scheduler or scheduler_of(launch.launcher)
    return submit_noted(scheduler, job, launch, lambda id_: note_submission(job, id_, launch.launcher), after=after)


def submit_noted(
    scheduler: Scheduler,
    job: JobDirectory,
    launch: LaunchConfig,
    note: Callable[[str], T],
    *,
    after: Sequence[str] = (),
    array: str = "",
) -> T:
    """Submit the script of `job`, and record its number by `note`; what that returns. Raises as `submit` does."""
    require_secrets(launch.secrets)
    try:
        id_ = scheduler.submit(job, launch, after=after, array=array)
    except NoAnswerError as error:
        look = {"slurm": f"squeue --me --name={job.name}", "pbs": "qstat"}.get(launch.launcher, "ps")
        raise MayRunError(f"{job.name}: may have been submitted, or not: {error}; look with '{look}'") from error
    except OSError as error:
        raise LaunchError(f"{job.name}: cannot be started ({error}); nothing was submitted") from error
    try:
        return note(id_)
    except BaseException as why:
        try:
            scheduler.cancel(id_)
        except LaunchError as error:
            raise MayRunError(f"{launch.launcher} {id_} could not be noted, and runs ({error}): {why}") from why
        if isinstance(why, KeyboardInterrupt):
            raise
        raise LaunchError(f"{launch.launcher} {id_} was cancelled, since it could not be noted: {why}") from why


def note_submission(job: JobDirectory, id_: str, launcher: Launcher) -> Submission:
    submission = Submission(id=id_, launcher=launcher, time=utc_now())
    job.add_submission(submission)
    job.event("submitted", f"to {launcher} as {id_}", submission=id_)
    return submission


def adopted(job: JobDirectory, known: Sequence[str], scheduler: Scheduler) -> str | None:
    """A submission of the job's script that waits or runs and is not `known`: submitting was killed before it was
    recorded. Raises `LaunchError` if the scheduler does not answer."""
    lost = [id_ for id_ in scheduler.unnoted(job) if id_ not in known]
    return lost[-1] if lost else None


def id_of_task(array: str, task: int) -> str:
    """The number of an array's task: 12_3 of Slurm's 12, 12[3].server of PBS's 12[].server."""
    return array.replace("[]", f"[{task}]") if "[]" in array else f"{array}_{task}"


def _answers(submits: str, *command: str) -> bool:
    if shutil.which(submits) is None:
        return False
    try:
        return ask(*command, limit_s=_PROBE_LIMIT_S).status == 0
    except LaunchError:
        return False
