"""A job of Slurm's put back into the queue under its number, and the small jobs that see to it.

What waits for the job's success ("afterok") was told when it failed that this will never come, and stays so: it has to
be told anew. A requeued job is started after two minutes, by Slurm's own rule.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.launch.schedulers.commands import NoAnswerError, ask

_NUMBER = re.compile(r"\d{1,12}")
_SUBMIT_LIMIT_S = 60.0
_WIDTH = 20
_WISHES = {"SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_ACCOUNT", "SBATCH_RESERVATION"}
_MEMORY = "400M"


def requeue(number: str) -> None:
    """One that has ended. Raises `LaunchError`."""
    _control("requeue", number)
    for waiting, dependency in _in_vain(number):
        _control("update", f"JobId={waiting}", f"Dependency={dependency}")


def release(number: str) -> None:
    """One that is held. Raises `LaunchError`; Slurm refuses it for what an administrator holds."""
    _control("release", number)


def prolog_may_hold() -> bool:
    """Whether a prolog that fails has Slurm hold the job. Raises `LaunchError`."""
    answer = ask("scontrol", "show", "config")
    if answer.status:
        raise LaunchError(f"scontrol show config: {answer.reason}")
    prolog = re.search(r"^Prolog\s*=\s*(\S+)", answer.stdout, re.MULTILINE)
    return prolog is not None and prolog[1] != "(null)" and "nohold_on_prolog_fail" not in answer.stdout


def submit_small(
    command: str, launch: LaunchConfig, *, name: str, log: Path, partition: str | None, options: Sequence[str]
) -> str:
    """A job of one CPU that runs `command` with the shell, for whom `launch` charges; its number.

    Raises `LaunchError` if Slurm does not take it.
    """
    where = {"partition": partition or launch.partition, "account": launch.account, "qos": launch.qos}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SLURMD_", "SBATCH_"))}
    kept |= {key: value for key, value in os.environ.items() if key in _WISHES or key.startswith("SLURM_CONF")}
    answer = ask(
        "sbatch",
        "--parsable",
        f"--job-name={name}",
        *[f"--{key}={value}" for key, value in where.items() if value],
        *("--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={_MEMORY}", "--time=10", "--no-requeue"),
        f"--output={log}",
        "--open-mode=append",
        f"--chdir={log.parent}",
        *options,
        f"--wrap={command}",
        environment=kept,
        limit_s=_SUBMIT_LIMIT_S,
    )
    number = answer.stdout.strip().partition(";")[0]
    if answer.status or not _NUMBER.fullmatch(number):
        kind = NoAnswerError if "Unable to contact" in answer.stderr else LaunchError
        raise kind(f"sbatch: {answer.reason}")
    return number


def start_in(number: str, seconds: int) -> None:
    """A job that waits for its time is to start then. Raises `LaunchError`."""
    _control("update", f"JobId={number}", f"StartTime=now+{seconds}")


def _in_vain(number: str) -> list[tuple[str, str]]:
    """Jobs of ours that wait for what cannot come, as Slurm believes, of this one; each with what it waited for."""
    form = f"--Format=JobID:{_WIDTH},Reason:40,Dependency:4096"
    answer = ask("squeue", "--noheader", "--me", "--states=PENDING", form)
    found = []
    for line in answer.stdout.splitlines() if answer.status == 0 else []:
        waiting, reason = line[:_WIDTH].strip(), line[_WIDTH : _WIDTH + 40].strip()
        dependency = re.sub(r"\([a-z_]*\)", "", line[_WIDTH + 40 :].strip())
        if reason == "DependencyNeverSatisfied" and re.search(rf"\bafterok:(?:[\d_+]+:)*{number}\b", dependency):
            found.append((waiting, dependency))
    return found


def _control(*arguments: str) -> None:
    answer = ask("scontrol", *arguments)
    if answer.status:
        kind = NoAnswerError if "Unable to contact" in answer.stderr else LaunchError
        raise kind(f"scontrol {' '.join(arguments)}: {answer.reason}")
