"""Ranks by Slurm's srun, one task each, in the job that this process is part of.

What has to be said although it looks like a default, since a job's environment says otherwise to srun:

- `--ntasks`, `--nodes`, `--ntasks-per-node`: SLURM_NTASKS and its like are the job's, not the attempt's.
- `--export=ALL`: SLURM_EXPORT_ENV may be NONE.
- SRUN_CPUS_PER_TASK: srun no longer takes --cpus-per-task from the job.
- `--kill-on-bad-exit=0 --wait=0`: the ranks that are left are saving, or writing down where they hang, when one has
  failed; how long they may is the attempt's grace, not the cluster's configuration.
- `--overlap`: the step of the attempt before may still hold its CPUs on a node that does not answer.

Signals go through scancel, by the step's name. srun itself is not asked: it makes something else of several of them.
Slurm may give a signal to a rank's program as well as to the process that passes it on (it does where proctrack is
linuxproc), so SIGINT, of which two mean something else than one, is given as SIGTERM.
"""

import functools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from glmforge.errors import LaunchError
from glmforge_ops.jobs.schedulers.base import asking
from glmforge_ops.jobs.script.container import by_pyxis, is_apptainers
from glmforge_ops.jobs.starters.base import Ranks
from glmforge_ops.jobs.starters.running import (
    Grace,
    ask,
    kill_session,
    places_in_container,
    ranks_command,
    spawn,
    wait_all,
    write_assignment,
)

_COMMAND_LIMIT_S = 30
_END_LIMIT_S = 5.0
"""That srun may take to end once Slurm has been told to kill the step. It would wait for nodes that do not answer; what
still runs on those is ended by Slurm, or ends itself."""


_OF_ATTEMPTS = "attempt-"


class SrunStarter:
    """Starts ranks as one step of the job (`Starter`)."""

    name = "srun"

    def start(self, ranks: Ranks) -> "Step":
        """Raises `LaunchError` outside a job."""
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            raise LaunchError("the starter srun: SLURM_JOB_ID is not set, so this is no job of Slurm's; choose ssh")
        end_leftovers(job)
        container = container_options(ranks)
        write_assignment(ranks, container_by_starter=bool(container))
        name = step_name(ranks)
        options = srun_options(ranks, name, ranks.ranks_per_node)
        command = [*options, *container, *ranks_command(ranks.directory.root, "--by", "srun")]
        return Step(job, name, ranks, spawn(command, ranks, environment=srun_environment(ranks), ends_with_us=True))

    def ask(self, node: str, words: Sequence[str]) -> str:
        return ask_by_srun(node, words)


def ask_by_srun(node: str, words: Sequence[str]) -> str:
    """What a program prints on a node of the job that this process is part of. Raises `LaunchError`."""
    if node == os.environ.get("SLURMD_NODENAME"):
        return ask(node, words)
    options = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--export=ALL", "--input=none"]
    return ask(node, ["srun", "--job-name=ask", *options, *words], _consistent(os.environ))


def step_name(ranks: Ranks) -> str:
    """Of the attempt's step, among all steps of the job."""
    return f"{_OF_ATTEMPTS}{ranks.directory.root.name}"


def srun_options(ranks: Ranks, name: str, tasks_per_node: int) -> list[str]:
    """srun, and all that it needs to start `tasks_per_node` on each of the nodes."""
    options = [
        "srun",
        f"--job-name={name}",
        f"--nodes={len(ranks.nodes)}",
        f"--ntasks={len(ranks.nodes) * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--nodelist={','.join(ranks.nodes)}",
        "--distribution=block",
        "--export=ALL",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--overlap",
        "--input=none",
        "--label",
    ]
    if ranks.gpus_per_node:
        options.append(f"--gpus-per-node={ranks.gpus_per_node}")
    return options


def srun_environment(ranks: Ranks, ranks_per_task: int = 1) -> dict[str, str]:
    """This process's, without what would contradict the options."""
    environment = _consistent(os.environ)
    if ranks.cpus_per_task is not None:
        environment["SRUN_CPUS_PER_TASK"] = str(ranks.cpus_per_task * ranks_per_task)
    return environment


def _consistent(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _CONTRADICT}


_CONTRADICT = frozenset(
    {
        "SLURM_ARBITRARY_NODELIST",
        "SLURM_CPU_BIND",
        "SLURM_DISTRIBUTION",
        "SLURM_EXPORT_ENV",
        "SLURM_GPUS",
        "SLURM_GPUS_PER_TASK",
        "SLURM_HOSTFILE",
        "SLURM_MEM_PER_CPU",
        "SLURM_MEM_PER_NODE",
        "SLURM_NNODES",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_GPU",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_TASKS_PER_NODE",
    }
)


class Step:
    """A step that runs (`Running`)."""

    def __init__(self, job: str, name: str, ranks: Ranks, process: subprocess.Popen[bytes]) -> None:
        self._job, self._name, self._process = job, name, process
        self._grace = Grace(ranks)

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is None and self._grace.is_over():
            self.kill()
        return status

    def signal(self, number: signal.Signals) -> None:
        number = signal.SIGTERM if number == signal.SIGINT else number
        for step in self._steps():
            _ask("scancel", f"--signal={number.name.removeprefix('SIG')}", step)

    def kill(self) -> None:
        for step in self._steps():
            _ask("scancel", step)  # SIGTERM, and after Slurm's KillWait SIGKILL
            _ask("scancel", "--signal=KILL", step)
        wait_all([self._process], _END_LIMIT_S)
        kill_session(self._process)

    def _steps(self) -> list[str]:
        """Usually one; none if it has ended, or Slurm does not answer."""
        return [step for step, name in _steps_of(self._job) if name == self._name]


def _steps_of(job: str) -> list[tuple[str, str]]:
    """Number and name of each that runs."""
    listed = _ask("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j")
    rows = [line.split() for line in listed.splitlines()]
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def end_leftovers(job: str) -> None:
    """Of earlier attempts: Slurm's controller may have been down when they were to be killed."""
    for step, name in _steps_of(job):
        if name.startswith(_OF_ATTEMPTS):
            _ask("scancel", "--signal=KILL", step)


def container_options(ranks: Ranks) -> list[str]:
    """Of the plugin pyxis; none without it, or without an image that is its own: Apptainer's files are Apptainer's."""
    if ranks.container is None or is_apptainers(ranks.container) or not _has_containers():
        return []
    return by_pyxis(ranks.container, places_in_container(ranks))


@functools.cache
def _has_containers() -> bool:
    return "--container-image" in _ask("srun", "--help")


def _ask(*command: str) -> str:
    """What it prints; nothing if it fails or hangs: a controller that is down is not the ranks' end."""
    try:
        done = subprocess.run(
            command,
            env=asking(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise LaunchError(f"there is no '{command[0]}' on this machine; choose another --starter") from None
    except (OSError, subprocess.TimeoutExpired):  # or this machine has no memory for another process now
        return ""
    return done.stdout
