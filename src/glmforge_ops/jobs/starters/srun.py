"""Ranks by Slurm's srun, one task per node, in the job that this process is part of.

Options that are given although they look like defaults, since a job's environment says otherwise to srun:

- `--ntasks`, `--nodes`, `--ntasks-per-node`: SLURM_NTASKS and its like are the job's, not the attempt's.
- `--export=ALL`: SLURM_EXPORT_ENV may be NONE.
- SRUN_CPUS_PER_TASK: srun no longer takes --cpus-per-task from the job; the task has the CPUs of all ranks of the node.
- `--kill-on-bad-exit=0 --no-kill --wait=0`: when a rank has failed or its node was lost, the others are saving, or
  write where they hang; the supervisor says for how long. Slurm would kill them without a word.
- `--overlap`: the step of the attempt before may still hold its CPUs on a node that does not answer.

Signals go through scancel, by the step's name: srun makes something else of several of them. Slurm may give a signal to
a rank as well as to the program that passes it on (it does where proctrack is linuxproc), so SIGINT, of which two mean
something else than one, is given as SIGTERM.
"""

import functools
import os
import signal
import subprocess

from glmforge.errors import LaunchError
from glmforge.observe.job_records import AttemptDirectory
from glmforge_ops.jobs.ranks.assignment import Assignment, slurm_job
from glmforge_ops.jobs.schedulers.base import ask, asking
from glmforge_ops.jobs.script.container import by_pyxis, is_apptainers
from glmforge_ops.jobs.starters.base import places_in_container, ranks_command, spawn, wait_all, write_assignment

_END_LIMIT_S = 5.0
"""That srun may take to end once Slurm has killed the step: it would wait for nodes that do not answer."""

_OF_ATTEMPTS = "attempt-"

_CONTRADICT = {
    f"SLURM_{name}"
    for name in (
        "ARBITRARY_NODELIST", "CPU_BIND", "DISTRIBUTION", "EXPORT_ENV", "GPUS", "GPUS_PER_TASK", "HOSTFILE",
        "MEM_PER_CPU", "MEM_PER_NODE", "NNODES", "NPROCS", "NTASKS", "NTASKS_PER_GPU", "NTASKS_PER_NODE",
        "TASKS_PER_NODE",
    )
}  # fmt: skip
"""Variables of the job that would contradict the options."""


class SrunStarter:
    """Starts ranks as one step of the job (`Starter`)."""

    name = "srun"

    def start(self, attempt: AttemptDirectory, ranks: Assignment) -> "Step":
        """Raises `LaunchError` outside a job."""
        job = slurm_job()
        if job is None:
            raise LaunchError("the starter srun: SLURM_JOB_ID is not set, so this is not a Slurm job; choose ssh")
        for step, name in _steps_of(job):  # Slurm's controller may have been down when an earlier one was to be killed
            if name.startswith(_OF_ATTEMPTS):
                _ask("scancel", "--signal=KILL", step)
        container = _container_options(attempt, ranks)
        write_assignment(attempt, ranks, container_by_starter=bool(container))
        name = f"{_OF_ATTEMPTS}{attempt.root.name}"
        command = [*_srun_options(ranks, name), *container, *ranks_command(attempt, "--slurm-node")]
        environment = {key: value for key, value in os.environ.items() if key not in _CONTRADICT}
        environment["SRUN_CPUS_PER_TASK"] = str((ranks.cpus_per_task or 1) * ranks.ranks_per_node)
        return Step(job, name, spawn(command, attempt.root / "starter.log", environment=environment))


def _srun_options(ranks: Assignment, name: str) -> list[str]:
    """srun, with options to start one task on each of the nodes."""
    return [
        "srun",
        f"--job-name={name}",
        f"--nodes={len(ranks.nodes)}",
        f"--ntasks={len(ranks.nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(ranks.nodes)}",
        "--cpu-bind=none",
        "--export=ALL",
        "--kill-on-bad-exit=0",
        "--no-kill",
        "--wait=0",
        "--overlap",
        "--input=none",
        "--label",
        *([f"--gpus-per-node={ranks.gpus_per_node}"] if ranks.gpus_per_node else []),
    ]


class Step:
    """A step that runs (`Running`)."""

    def __init__(self, job: str, name: str, process: subprocess.Popen[bytes]) -> None:
        self._job, self._name, self._process = job, name, process

    def poll(self) -> int | None:
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        number = signal.SIGTERM if number == signal.SIGINT else number
        for step in self._steps():
            _ask("scancel", f"--signal={number.name.removeprefix('SIG')}", step)

    def kill(self) -> None:
        for step in self._steps():
            _ask("scancel", step)  # SIGTERM, and after Slurm's KillWait SIGKILL
            _ask("scancel", "--signal=KILL", step)
        wait_all([self._process], _END_LIMIT_S)

    def _steps(self) -> list[str]:
        """Usually one; none if it has ended, or Slurm does not answer."""
        return [step for step, name in _steps_of(self._job) if name == self._name]


def _steps_of(job: str) -> list[tuple[str, str]]:
    """Number and name of each that runs."""
    listed = _ask("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j")
    rows = [line.split() for line in listed.splitlines()]
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def _container_options(attempt: AttemptDirectory, ranks: Assignment) -> list[str]:
    """Of the plugin pyxis; empty without it, and for files of Apptainer's, which it does not read."""
    if ranks.container is None or is_apptainers(ranks.container) or not _has_containers():
        return []
    return by_pyxis(ranks.container, places_in_container(attempt, ranks))


@functools.cache
def _has_containers() -> bool:
    return "--container-image" in _ask("srun", "--help")


def _ask(*command: str) -> str:
    """Its output; empty if it fails or hangs: a controller that is down does not end the ranks."""
    try:
        return ask(*command, environment=asking()).stdout
    except LaunchError:
        return ""
