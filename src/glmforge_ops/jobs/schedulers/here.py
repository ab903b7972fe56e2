"""No scheduler: the job's script is a process of this machine, in the foreground or detached.

Process ids are used again, so a submission's number identifies its process: its id, when it began, and the boot and
namespace that the id belongs to, as in `4711.830512.6f1c0a52.4026531836@login1`.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.files import open_regular, shown
from glmforge.observe.job_records import JobDirectory
from glmforge.runtime.process import ProcessIdentity, identify, is_alive, is_suspended, this_process
from glmforge_ops.jobs.schedulers.base import Scheduler, Seen, State, ask

_ID = re.compile(r"([1-9]\d{0,9})\.\d+\.[0-9a-f]*\.\d*@([^\s@]+)")
_OF_SCHEDULERS = ("partition", "qos", "account", "array", "dependency", "constraint", "nodelist", "sbatch_args")
_NEEDS = {"ssh": "ssh", "mpi": "mpirun"}


class Here(Scheduler):
    """Of the launchers local, ssh and mpi."""

    def check(self, launch: LaunchConfig) -> None:
        """Options of schedulers are refused, and the launcher's program must be there. Raises `LaunchError`."""
        for field in _OF_SCHEDULERS:
            if getattr(launch, field):
                raise LaunchError(f"{field}: the launcher {launch.launcher} has no scheduler; leave it out")
        program = _NEEDS.get(launch.launcher)
        if program is not None and shutil.which(program) is None:
            raise LaunchError(f"{program}: is not on this machine; install it, or choose another --launcher")
        if program == "mpirun" and not re.search("Open MPI|OpenRTE", ask("mpirun", "--version").stdout):
            raise LaunchError(f"mpirun: {shutil.which('mpirun')} is not Open MPI's; put that one first on PATH")

    def submit(self, job: JobDirectory, launch: LaunchConfig, *, after: Sequence[str] = (), array: str = "") -> str:
        """Start the script in a session of its own, which survives this process and its terminal."""
        log = job.root / f"scheduler-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"
        with open_regular(log, "ab") as output:
            child = subprocess.Popen(
                ["bash", str(job.script)],
                cwd=job.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return id_of(identify(child.pid))

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        return {id_: _look(id_) for id_ in ids}

    def cancel(self, submission: str) -> None:
        """Ask it to end, which it does once its ranks have ended. Raises `LaunchError`."""
        seen = _look(submission)
        if seen.state is State.UNKNOWN:
            raise LaunchError(f"{shown(submission)}: {seen.reason}")
        if seen.state.is_over:
            return
        pid = int(submission.partition(".")[0])
        try:
            os.kill(pid, signal.SIGTERM)
            if seen.state is State.SUSPENDED:
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
        except PermissionError:
            raise LaunchError(f"process {pid}: is another user's; ask them to end it") from None


def id_of_this_process() -> str:
    """The submission's number of this process, before and after `become`."""
    return id_of(this_process())


def become(job: JobDirectory) -> NoReturn:
    """Run the job's script in the foreground, in place of this process, whose number it keeps."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(job.root)
    os.execvp("bash", ["bash", str(job.script.absolute())])


def id_of(process: ProcessIdentity) -> str:
    """The submission's number."""
    namespace = "".join(re.findall(r"\d+", process.namespace))
    return f"{process.pid}.{process.began}.{process.boot[:8]}.{namespace}@{process.host}"


def _look(submission: str) -> Seen:
    found = _ID.fullmatch(submission)
    if found is None:
        reason = f"{shown(submission)}: is not the number of a process that glmforge started"
        return Seen(submission, State.UNKNOWN, reason)
    now = identify(int(found[1]))
    if id_of(now) == submission and is_alive(now):
        state = State.SUSPENDED if is_suspended(now) else State.RUNNING
        return Seen(submission, state, nodes=(now.host,))
    if id_of(now).split(".", 2)[2] == submission.split(".", 2)[2]:
        return Seen(submission, State.ENDED, "its process has ended; the job's events say how", (now.host,))
    if found[2] == now.host:
        return Seen(submission, State.ENDED, "its machine was started again since, or it ran in another container")
    return Seen(submission, State.UNKNOWN, f"runs on {found[2]}; ask there")
