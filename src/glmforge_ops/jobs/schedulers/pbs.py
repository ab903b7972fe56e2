"""PBS through qsub, qstat, qdel and qrls: OpenPBS, PBS Professional, Torque, and Slurm's own (slurm-wlm-torque).

What they have in common is used, which is the text of `qstat -f`. How a job ended PBS Professional says, Torque for
some minutes, and Slurm's qstat not at all: the job's own files do. None of them warns a job before its time is over.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.files import shown
from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.schedulers.base import (
    SUBMIT_LIMIT_S,
    Answer,
    NoAnswerError,
    Scheduler,
    Seen,
    State,
    ask,
    without_job,
)

_ID = re.compile(r"\d{1,12}(\[\d{0,9}\])?(\.[A-Za-z0-9][A-Za-z0-9_.-]{0,250})?")
_STATES = {
    **dict.fromkeys("BR", State.RUNNING),  # B: an array some of whose tasks run
    **dict.fromkeys("QTW", State.WAITING),
    **dict.fromkeys("SU", State.SUSPENDED),
    **dict.fromkeys("CFMX", State.ENDED),
    "E": State.ENDING,
    "H": State.HELD,
}
_UNKNOWN_JOB, _HAS_FINISHED = 153, 35
_SIGNALLED = 256
_ONLY_SLURM = ("qos", "constraint", "exclude", "nodelist", "sbatch_args")


class Pbs(Scheduler):
    """By the commands of PBS."""

    def check(self, launch: LaunchConfig) -> None:
        """Options that PBS does not have are refused; the rest qsub checks. Raises `LaunchError`."""
        for field in _ONLY_SLURM:
            if getattr(launch, field):
                raise LaunchError(f"{field}: PBS has no such option; leave it out, or write a --template")
        if "?" in (launch.dependency or ""):
            raise LaunchError("dependency: PBS does not know '?'; separate with commas, all of which have to be met")
        answer = ask("qstat", "-Q")
        if answer.status:
            raise LaunchError(f"qstat: {_complaint(answer)}; is this where jobs are submitted?")

    def submit(self, job: JobDirectory, launch: LaunchConfig, *, after: Sequence[str] = (), array: str = "") -> str:
        """Raises `LaunchError`, and `NoAnswerError` if it may have been submitted."""
        # Names without a directory: Slurm's qsub puts its command line together without quotation marks.
        options = ["-W", f"depend=afterok:{':'.join(after)}"] if after else []
        options += ["-J", array] if array else []
        command = ("qsub", *options, "-o", "scheduler.log", "-j", "oe", job.script.name)
        answer = ask(*command, environment=without_job(os.environ), cwd=job.root, limit_s=SUBMIT_LIMIT_S)
        id_ = (answer.stdout.split() or [""])[-1]
        if answer.status or not _ID.fullmatch(id_):
            raise LaunchError(f"qsub: {_complaint(answer)}; nothing was submitted")
        return id_

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        return {id_: _look(id_) for id_ in dict.fromkeys(ids)}

    def cancel(self, submission: str) -> None:
        """Raises `LaunchError` if PBS does not do it."""
        if not _ID.fullmatch(submission):
            raise LaunchError(f"{shown(submission)}: is not the number of a PBS job")
        answer = ask("qdel", submission)
        # Slurm's qdel fails without a word for a job that has ended.
        if answer.status and not _is_over(answer) and not _look(submission).state.is_over:
            raise LaunchError(f"qdel {submission}: {_complaint(answer)}")


def _look(id_: str) -> Seen:
    if not _ID.fullmatch(id_):
        return Seen(id_, State.UNKNOWN, "is not the number of a PBS job")
    try:
        fields = _fields(id_)
    except LaunchError as error:
        return Seen(id_, State.UNKNOWN, str(error))
    if fields is None:
        return Seen(id_, State.UNKNOWN, "PBS does not know this job, or has forgotten it", is_forgotten=True)
    nodes = re.findall(r"(?:^|\+)([A-Za-z0-9][A-Za-z0-9_.-]*)", fields.get("exec_host", ""))
    return Seen(id_, *_state(fields), tuple(dict.fromkeys(nodes)))


def _fields(id_: str) -> dict[str, str] | None:
    """A job's fields as qstat prints them; None for a job that it does not know. Raises `NoAnswerError`."""
    answer = ask("qstat", "-x", "-f", id_)  # -x: finished ones, too, as PBS Professional has it
    if answer.status and not _is_over(answer):
        answer = ask("qstat", "-f", id_)
    if answer.status == 0 and "job_state" in answer.stdout:
        # Long values go on behind a tab; in Slurm's qstat fields begin with one.
        lines = re.sub(r"\n\t(?!\S+ = )", "", answer.stdout).splitlines()
        pairs = (line.strip().partition(" = ") for line in lines)
        return {name: value.strip() for name, equals, value in pairs if equals}
    if answer.status == 0 or _is_over(answer):
        return None
    raise NoAnswerError(f"qstat: {_complaint(answer)}")


def _state(fields: Mapping[str, str]) -> tuple[State, str]:
    state, reason = _STATES.get(fields["job_state"][:1], State.UNKNOWN), fields.get("comment", "")
    status = fields.get("Exit_status", fields.get("exit_status", ""))
    if state is not State.ENDED:
        return state, reason
    if not re.fullmatch(r"-?\d+", status):
        return state, "PBS does not say how it ended; the job's events do"
    number = int(status)
    if number == 0:
        return State.COMPLETED, reason
    if number > _SIGNALLED:
        return State.CANCELLED, f"ended by signal {number - _SIGNALLED}"
    return State.FAILED, f"status {number}"


def _is_over(answer: Answer) -> bool:
    text = answer.stderr + answer.stdout
    return answer.status in (_UNKNOWN_JOB, _HAS_FINISHED) or "Unknown Job Id" in text or "has finished" in text


def _complaint(answer: Answer) -> str:
    """Slurm's qsub prints what sbatch said as a Perl list in quotation marks."""
    errors = re.findall(r"error: ([^\n']+)", answer.stdout)
    return shown(errors[-1]) if errors else answer.reason
