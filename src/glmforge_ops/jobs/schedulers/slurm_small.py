"""Small jobs of Slurm's, which look after a launched one: what they are made of, and when they start."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.schedulers.commands import ask, slurms_error
from glmforge_ops.jobs.schedulers.slurm_again import control

MINUTES = 10
"""After which Slurm ends a small job."""

_NUMBER = re.compile(r"\d{1,12}")
_SUBMIT_LIMIT_S = 60.0
_WISHES = {"SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_ACCOUNT", "SBATCH_RESERVATION"}
_MEMORY = "400M"
_PROLOG = re.compile(r"^Prolog(?:\[\d+\])?\s*=\s*(\S+)", re.MULTILINE)
"""Since Slurm 24.05 there is a line for each prolog, `Prolog[0] = ...`, and none if there is none."""


def submit_small(
    command: str, launch: LaunchConfig, *, name: str, log: Path, partition: str | None, options: Sequence[str]
) -> str:
    """A job of one CPU that runs `command` with the shell, for whom `launch` charges; its number.

    Raises `LaunchError` if Slurm does not take it.
    """
    where = {"partition": partition or launch.partition, "account": launch.account, "qos": launch.qos}
    others = ("SLURM_", "SLURMD_", "SBATCH_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(others) and key not in launch.secrets}
    kept |= {key: value for key, value in os.environ.items() if key in _WISHES or key.startswith("SLURM_CONF")}
    answer = ask(
        "sbatch",
        "--parsable",
        f"--job-name={name}",
        *[f"--{key}={value}" for key, value in where.items() if value],
        *("--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={_MEMORY}", f"--time={MINUTES}", "--no-requeue"),
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
        raise slurms_error(answer, "sbatch")
    return number


def start_in(number: str, seconds: int) -> None:
    """A job that waits for its time is to start then. Raises `LaunchError`."""
    control("update", f"JobId={number}", f"StartTime=now+{seconds}")


def prolog_may_hold() -> bool:
    """Whether a prolog that fails has Slurm hold the job. Raises `LaunchError`."""
    answer = ask("scontrol", "show", "config")
    if answer.status:
        raise LaunchError(f"scontrol show config: {answer.reason}")
    prologs = set(_PROLOG.findall(answer.stdout)) - {"(null)"}
    return bool(prologs) and "nohold_on_prolog_fail" not in answer.stdout
