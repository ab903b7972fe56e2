"""What every scheduler does; and scheduler commands, run with a time limit."""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.files import escaped
from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.ranks.assignment import NUMBERS

SUBMIT_LIMIT_S = 120.0
_LIMIT_S = 30.0
_PREFERENCES = ("SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_")
_LONGEST_REASON = 300


class State(StrEnum):
    """Of a submission."""

    WAITING = "waiting"
    HELD = "held"  # until a person, or glmforge, releases it: `reason` says why
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    NODE_FAILED = "node failed"
    OUT_OF_MEMORY = "out of memory"
    ENDED = "ended"  # how, only the job's own files say
    UNKNOWN = "unknown"  # the scheduler has forgotten it, or does not answer: `reason` says which

    @property
    def is_over(self) -> bool:
        return self not in _ALIVE


_ALIVE = {State.WAITING, State.HELD, State.RUNNING, State.SUSPENDED, State.ENDING, State.UNKNOWN}


@dataclass(frozen=True)
class Seen:
    """A submission as its scheduler reports it."""

    id: str
    state: State
    reason: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    is_forgotten: bool = False
    """Of one that is UNKNOWN: the scheduler answers, and no longer knows it."""


class Scheduler(Protocol):
    """Takes jobs and runs them. Every method raises `LaunchError`, one line with the fix."""

    def check(self, launch: LaunchConfig) -> None:
        """Reject what the scheduler would refuse or never start."""

    def submit(self, job: JobDirectory, launch: LaunchConfig, *, after: Sequence[str] = (), array: str = "") -> str:
        """Submit the job's script; its number.

        Args:
            after: start when these submissions have succeeded.
            array: tasks, in place of those of the script.

        Raises `NoAnswerError` if it may have been submitted.
        """

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        """All of them, with one question where the scheduler allows it. Unknown ones are UNKNOWN."""

    def cancel(self, submission: str) -> None:
        """End it. Does nothing for one that has ended."""

    def release(self, submission: str) -> None:
        """Let a submission start that the scheduler itself holds, which only Slurm does."""
        return

    def unnoted(self, job: JobDirectory) -> list[str]:
        """Submissions of this job's script that wait or run, newest last, where the scheduler can find them."""
        return []


class NoAnswerError(LaunchError):
    """The scheduler itself does not answer, which says nothing about its jobs."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its status."""

    status: int
    stdout: str
    stderr: str

    @property
    def reason(self) -> str:
        """Its error in one line: without the program's name and the word error."""
        lines = [line.strip() for line in (self.stderr.strip() or self.stdout.strip()).splitlines()]
        text = lines[-1] if lines else f"status {self.status}"
        for prefix in ("error:", "fatal:", "allocation failure:"):
            text = text.rpartition(prefix)[2].strip() or text
        return escaped(text)[:_LONGEST_REASON]


def ask(
    *command: str,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str = "",
    limit_s: float = _LIMIT_S,
) -> Answer:
    """Run a command, by default with this process's environment. Raises `LaunchError`, `NoAnswerError`."""
    try:
        done = subprocess.run(
            command,
            env=dict(os.environ if environment is None else environment) | {"LC_ALL": "C"},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]}: is not on this machine; run this where jobs are submitted, or choose another --launcher"
        ) from None
    except OSError as error:
        raise LaunchError(f"{command[0]}: cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"{command[0]}: no answer within {limit_s:g} s") from None
    return Answer(done.returncode, done.stdout, done.stderr)


def asking() -> dict[str, str]:
    """The environment for Slurm's commands, without users' preferences for their output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PREFERENCES)}
    return kept | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def without_job(environment: Mapping[str, str], *others: str) -> dict[str, str]:
    """The environment without variables that describe the current job or rank, and without `others`.

    sbatch would take the SLURM_* variables of a job that calls it for options of the new one.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("SLURM_CONF")
        or not (name in NUMBERS or name in others or name.startswith(("SLURM_", "SLURMD_", "SRUN_", "PBS_")))
    }
