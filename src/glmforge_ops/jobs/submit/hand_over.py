"""A job given to its scheduler, and the note of it in the job's directory."""

import shutil
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from glmforge.config.launch import LaunchConfig, Launcher
from glmforge.config.secrets import require_secrets
from glmforge.errors import GlmforgeError, LaunchError
from glmforge_ops.jobs.job import JobDirectory, Submission, utc_now
from glmforge_ops.jobs.schedulers.base import Scheduler
from glmforge_ops.jobs.schedulers.commands import NoAnswerError, ask
from glmforge_ops.jobs.schedulers.here import Here
from glmforge_ops.jobs.schedulers.pbs import Pbs
from glmforge_ops.jobs.schedulers.slurm import Slurm

_PROBE_LIMIT_S = 10.0

_LOOK = {"slurm": "look with 'squeue --me --name={name}'", "pbs": "look with 'qstat'"}
_LOOK_HERE = "look with 'glmforge jobs show {name}'"
"""How a person sees whether a scheduler has a job."""

T = TypeVar("T")


class MayRunError(LaunchError):
    """A job that could not be noted, and that its launcher may run all the same: it needs its directory."""


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


def hand_over(
    job: JobDirectory,
    *,
    launch: LaunchConfig | None = None,
    scheduler: Scheduler | None = None,
    tasks: Sequence[JobDirectory] = (),
    again: bool = False,
    mend: str | None = None,
) -> Submission:
    """Submit the job's script as it stands, and note the number, in the jobs of an array's tasks, too.

    Args:
        launch: what the script was made of, if not of the job's own options.
        scheduler: that of the launcher, unless it is given.
        tasks: jobs of an array's tasks.
        mend: the command that submits it if it was not, to be told; unless it is given, 'glmforge jobs resubmit'.

    Raises `GlmforgeError`: then no job of it is left in the queue; but `MayRunError` if one may be. One
    whose notes are interrupted is cancelled, too.
    """
    options = launch or job.read().launch
    numbers = {_number_of(task): task for task in tasks}

    def note(id_: str) -> Submission:
        submission = note_submission(job, id_, options.launcher, again=again)
        for number, task in numbers.items():
            note_submission(task, id_of_task(id_, number), options.launcher)
        return submission

    return submit(scheduler or scheduler_of(options.launcher), job, options, note, mend)


def submit(
    scheduler: Scheduler, job: JobDirectory, launch: LaunchConfig, note: Callable[[str], T], mend: str | None = None
) -> T:
    """Submit the script of `job`, and have the number noted; what `note` answers. Raises as `hand_over` does.

    `KeyboardInterrupt` says what is known of the submission.
    """
    require_secrets(launch.secrets)
    mend = mend or f"glmforge jobs resubmit {job.name}"
    look = f"{_LOOK.get(launch.launcher, _LOOK_HERE).format(name=job.name)}; if it is not there, '{mend}'"
    try:
        id_ = scheduler.submit(job, launch)
    except NoAnswerError as error:
        raise MayRunError(f"{job.name}: may have been submitted, or not: {error}; {look}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"whether {job.name} was submitted is not known; {look}") from None
    except OSError as error:
        why = f"{error.filename or job.root}: {error.strerror}"
        raise LaunchError(f"{job.name}: cannot be started ({why}); nothing was submitted") from error
    try:
        return note(id_)
    except (GlmforgeError, OSError) as error:
        _cancel_unnoted(scheduler, launch.launcher, id_, error)
    except KeyboardInterrupt:
        try:
            scheduler.cancel(id_)
        except (LaunchError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted"
            raise KeyboardInterrupt(f"{launch.launcher} {id_} was not noted, and goes on ({why})") from None
        raise KeyboardInterrupt(f"{launch.launcher} {id_} was cancelled; '{mend}' submits it again") from None


def id_of_task(array: str, task: int) -> str:
    """The number of an array's task: 12_3 of Slurm's 12, 12[3].server of PBS's 12[].server."""
    return array.replace("[]", f"[{task}]") if "[]" in array else f"{array}_{task}"


def note_submission(job: JobDirectory, id_: str, launcher: Launcher, *, again: bool = False) -> Submission:
    submission = Submission(id=id_, launcher=launcher, time=utc_now(), again=again)
    job.add_submission(submission)
    job.event("submitted", f"to {launcher} as {id_}", submission=id_)
    return submission


def _number_of(task: JobDirectory) -> int:
    number = task.read().task
    assert number is not None, "tasks of an array have numbers"
    return number


def _cancel_unnoted(scheduler: Scheduler, launcher: Launcher, id_: str, why: Exception) -> NoReturn:
    """It would run, and nobody would know of it."""
    try:
        scheduler.cancel(id_)
    except LaunchError as error:
        raise MayRunError(f"{launcher} {id_} could not be noted, and goes on ({error}): {why}") from why
    raise LaunchError(f"{launcher} {id_} was cancelled, since it could not be noted: {why}") from why


def _answers(*command: str) -> bool:
    try:
        return ask(*command, limit_s=_PROBE_LIMIT_S).status == 0
    except LaunchError:
        return False
