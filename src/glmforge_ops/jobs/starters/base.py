"""What all starters share: the attempt's `ranks.json`, a process that ends with the supervisor, a bounded end."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from glmforge.errors import LaunchError
from glmforge.files import open_regular
from glmforge.observe.job_records import AttemptDirectory
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.script.container import in_apptainer

_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


class Running(Protocol):
    """Ranks that were started."""

    def poll(self) -> int | None:
        """The starter's status once all ranks that can be reached have ended; negative: a signal."""

    def signal(self, number: signal.Signals) -> None:
        """To every rank."""

    def kill(self) -> None:
        """End every process on every node that can be reached, and wait for it, for a bounded time."""


class Starter(Protocol):
    """Starts ranks. Raises `LaunchError` if its program is missing."""

    name: str

    def start(self, attempt: AttemptDirectory, ranks: Assignment) -> Running: ...


def ranks_command(attempt: AttemptDirectory, *arguments: str) -> list[str]:
    """The command line of `jobs.ranks` on a node: the same Python, at the same path.

    -P: files of the working directory are not imported in place of Python's own modules.
    """
    return [sys.executable, "-P", "-m", "glmforge_ops.jobs.ranks", str(attempt.root), *arguments]


def write_assignment(attempt: AttemptDirectory, ranks: Assignment, *, container_by_starter: bool = False) -> None:
    """What `jobs.ranks` reads on every node. Raises `LaunchError` if it cannot be written."""
    if ranks.container is not None and not container_by_starter:
        places = places_in_container(attempt, ranks)
        wrapped = in_apptainer(ranks.container, places, gpus=ranks.gpus_per_node > 0)
        ranks = replace(ranks, command=[*wrapped, *ranks.command])
    try:
        ranks.write(attempt.root)
    except OSError as error:
        raise LaunchError(f"{attempt.root}: cannot be written to ({error.strerror}); free some space") from None


def places_in_container(attempt: AttemptDirectory, ranks: Assignment) -> list[Path]:
    """What ranks need of their node: where they run, the job's directory, and the file of their step."""
    return [Path(ranks.cwd), attempt.job, Path("/dev/shm")]


def spawn(
    command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a starter's program in a session of its own: the supervisor passes a Ctrl-C on.

    It gets SIGTERM when this process is killed. On a full disk its output is lost. Raises `LaunchError` if the program
    is missing.
    """
    with contextlib.ExitStack() as stack:
        output = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            output = stack.enter_context(open_regular(log, "ab")).fileno()
        try:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        except FileNotFoundError:
            raise LaunchError(
                f"there is no '{command[0]}' on this machine; install it, or choose another starter"
            ) from None
        except OSError as error:
            raise LaunchError(f"'{command[0]}' cannot be started: {error.strerror}") from None


def wait_all(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    """Until all have ended, at most so long; those of the starter that are left are killed."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
