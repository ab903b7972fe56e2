"""A job of Slurm's put back into the queue under its number, and what waits for it told that it may still come.

What waits for the job's success ("afterok") was told when it failed that this will never come, and stays so: it has to
be told anew. A requeued job is started after two minutes, by Slurm's own rule.
"""

import re

from glmforge_ops.jobs.schedulers.commands import ask, slurms_error
from glmforge_ops.jobs.schedulers.slurm_jobs import asking

_WIDTH = 20


def requeue(number: str) -> None:
    """One that has ended. Raises `LaunchError`."""
    control("requeue", number)


def release(number: str) -> None:
    """One that is held. Raises `LaunchError`; Slurm refuses it for what an administrator holds."""
    control("release", number)


def waiting_in_vain(number: str) -> dict[str, str]:
    """Jobs of ours that, as Slurm believes, wait for what cannot come of this one; each with what it waits for.

    Raises `LaunchError`.
    """
    form = f"--Format=JobID:{_WIDTH},Reason:40,Dependency:4096"
    answer = ask("squeue", "--noheader", "--me", "--states=PENDING", form, environment=asking())
    if answer.status:
        raise slurms_error(answer, "squeue")
    found = {}
    for line in answer.stdout.splitlines():
        waiting, reason = line[:_WIDTH].strip(), line[_WIDTH : _WIDTH + 40].strip()
        dependency = re.sub(r"\([a-z_]*\)", "", line[_WIDTH + 40 :].strip())
        if reason == "DependencyNeverSatisfied" and re.search(rf"\bafterok:(?:[\d_+]+:)*{number}\b", dependency):
            found[waiting] = dependency
    return found


def wait_anew(waiting: str, dependency: str) -> None:
    """Have a job wait for what it has waited for. Raises `LaunchError`."""
    control("update", f"JobId={waiting}", f"Dependency={dependency}")


def control(*arguments: str) -> None:
    """Run scontrol. Raises `LaunchError`, `NoAnswerError`."""
    answer = ask("scontrol", *arguments)
    if answer.status:
        raise slurms_error(answer, f"scontrol {' '.join(arguments)}")
