"""Slurm, through its own commands: jobs are checked, handed over with sbatch, and ended with scancel.

Traps of Slurm that this file is about: variables win over a script's own lines. SBATCH_PARTITION of somebody's profile
would move the job silently, and SLURM_* of the job in which `sbatch` is called describe that job, not the new one.
"""

import os
import re
from collections.abc import Iterable, Mapping

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.files import shown
from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.ranks.variables import NUMBERS
from glmforge_ops.jobs.schedulers.base import Seen, State
from glmforge_ops.jobs.schedulers.commands import SLURMS_ANSWER_IS_LOST, NoAnswerError, ask
from glmforge_ops.jobs.schedulers.slurm_again import release, requeue
from glmforge_ops.jobs.schedulers.slurm_check import check
from glmforge_ops.jobs.schedulers.slurm_jobs import asking, is_forgotten, look_at

_ID = re.compile(r"\d{1,12}(_\d{1,9})?")
_SUBMIT_LIMIT_S = 120.0

_VARIABLES = {
    "nodes": (),
    "partition": ("SBATCH_PARTITION",),
    "qos": ("SBATCH_QOS",),
    "account": ("SBATCH_ACCOUNT",),
    "time": ("SBATCH_TIMELIMIT",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "constraint": ("SBATCH_CONSTRAINT",),
    "signal": ("SBATCH_SIGNAL",),
    "array": ("SBATCH_ARRAY_INX",),
    "gpus_per_node": ("SBATCH_GPUS_PER_NODE", "SBATCH_GPUS", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES"),
}
"""Variables that would win over what a script says of these; those of what is left open are the user's wish."""
_NEVER = NUMBERS | {"SBATCH_OUTPUT", "SBATCH_ERROR", "SBATCH_OPEN_MODE", "SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"}


class Slurm:
    """A `Scheduler`."""

    name = "slurm"

    def check(self, launch: LaunchConfig) -> None:
        """Raises `LaunchError`: one line, before anything is submitted."""
        check(launch, environment=environment_of(launch))

    def submit(self, job: JobDirectory, launch: LaunchConfig) -> str:
        """Logs go into the job's directory. Raises `LaunchError`, and `NoAnswerError` if it may have been submitted."""
        answer = ask(
            "sbatch",
            "--parsable",
            job.script.name,
            environment=environment_of(launch),
            cwd=job.root,
            limit_s=_SUBMIT_LIMIT_S,
            mend="",  # to try again might be to submit it twice
        )
        number = answer.stdout.strip().partition(";")[0]
        if answer.status and any(words in answer.stderr for words in SLURMS_ANSWER_IS_LOST):
            raise NoAnswerError(f"sbatch: {answer.reason}")
        if answer.status or not _ID.fullmatch(number):
            raise LaunchError(f"sbatch: {answer.reason}; nothing was submitted")
        return number

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        """An array is looked at as a whole (12) or by task (12_3)."""
        found: dict[str, Seen] = {}
        wanted = list(dict.fromkeys(ids))
        for id_ in wanted:
            if not _ID.fullmatch(id_):
                found[id_] = Seen(id_, State.UNKNOWN, "is no number of a Slurm job")
        return found | look_at([id_ for id_ in wanted if id_ not in found])

    def cancel(self, submission: str) -> None:
        """Raises `LaunchError` if Slurm does not do it."""
        if not _ID.fullmatch(submission):
            raise LaunchError(f"{shown(submission)}: is no number of a Slurm job")
        answer = ask("scancel", submission, environment=asking())
        if answer.status and not is_forgotten(answer):
            raise LaunchError(f"scancel {submission}: {answer.reason}")

    def again(self, seen: Seen) -> bool:
        """False if Slurm has forgotten it, as it does some minutes after a job's end (`MinJobAge`)."""
        try:
            (release if seen.state is State.HELD else requeue)(seen.id)
        except LaunchError as error:
            if "Invalid job id" not in str(error):
                raise
            return False
        return True


def environment_of(launch: LaunchConfig, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What sbatch and salloc get: without variables that contradict the script, or tell of another job."""
    ours = {name for field, names in _VARIABLES.items() if getattr(launch, field) for name in names}
    kept = {
        name: value
        for name, value in environment.items()
        if name not in ours | _NEVER
        and (not name.startswith(("SLURM_", "SLURMD_", "SRUN_")) or name.startswith("SLURM_CONF"))
    }
    exported = kept.get("SBATCH_EXPORT", "ALL")
    if launch.secrets and exported != "ALL":
        kept["SBATCH_EXPORT"] = ",".join([*([] if exported == "NONE" else [exported]), *launch.secrets])
    return kept
