"""What all starters share: the attempt's assignment, the grace after a first failure, and an end that is bounded."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from glmforge.errors import LaunchError
from glmforge.files import open_regular, read_json
from glmforge.runtime.ssh import UNREACHABLE, explain_unreachable, last_line
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.ranks.record import FIRST_FAILURE
from glmforge_ops.jobs.script.container import in_apptainer
from glmforge_ops.jobs.starters.base import Ranks, SilentNodeError

KILL_LIMIT_S = 10.0
"""That ending every process may take; a node that does not answer in it is left to its own watch."""

OF_SRUN = re.compile(
    r"^srun: (error: .{0,300}: Exited with exit code \d+$|Job step aborted|error: Timed out waiting for job step)"
)
"""Said after what the program itself has, or after the reason."""

_WAITS = re.compile(r"^srun: .{0,100}(step creation \w+ disabled|controller not responding).{0,100}", re.MULTILINE)
"""Of srun that waits for Slurm: it has not come to the node yet."""

_NOT_REACHED = re.compile(r"^srun: error: (Task launch for .{1,100} failed on node|task \d+ launch failed)")
"""Of srun that has come to the node, and was not let in."""

ASK_LIMIT_S = 30.0
"""That a node may take to answer."""

_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1

STARTER_LOG = "starter.log"
"""In an attempt's directory: what srun, ssh or mpirun itself has said."""


def ranks_command(directory: Path, *arguments: str) -> list[str]:
    """The command line of `glmforge_ops.jobs.ranks` on a node: the same Python, at the same path.

    -P: what lies in the working directory is not imported in place of Python's own modules.
    """
    return [sys.executable, "-P", "-m", "glmforge_ops.jobs.ranks", str(directory), *arguments]


def write_assignment(ranks: Ranks, *, container_by_starter: bool = False) -> None:
    """What `glmforge_ops.jobs.ranks` reads on every node. Raises `LaunchError` if it cannot be written."""
    command = list(ranks.command)
    if ranks.container is not None and not container_by_starter:
        places = places_in_container(ranks)
        command = [*in_apptainer(ranks.container, places, gpus=ranks.gpus_per_node > 0), *command]
    assignment = Assignment(
        command=command,
        cwd=str(ranks.cwd.absolute()),
        environment=dict(ranks.environment),
        nodes=list(ranks.nodes),
        ranks_per_node=ranks.ranks_per_node,
        address=ranks.address,
        port=ranks.port,
        interface=ranks.interface,
        gpus_per_node=ranks.gpus_per_node,
        cpus_per_task=ranks.cpus_per_task,
        grace_s=ranks.grace_s,
        log_bytes=ranks.log_bytes,
        step_pattern=ranks.step_pattern,
    )
    try:
        assignment.write(ranks.directory.root)
    except OSError as error:
        raise LaunchError(f"{ranks.directory.root}: cannot be written to ({error.strerror}); free some space") from None


def places_in_container(ranks: Ranks) -> list[Path]:
    """What ranks need of their node: where they run, what the job's directory says, and the file of their step."""
    return [ranks.cwd, ranks.directory.job, Path("/dev/shm")]


def spawn(
    command: Sequence[str],
    ranks: Ranks,
    *,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    log: Path | None = None,
    ends_with_us: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a starter's program in a session of its own: a Ctrl-C on the terminal is the supervisor's to pass on.

    `ends_with_us`: it gets SIGTERM when this process is gone, be it killed; for a program that nothing else tells.
    What it says goes into `log`; by default into the attempt's `starter.log`. Raises `LaunchError` if the program is
    not there.
    """
    with _opened(log or ranks.directory.root / STARTER_LOG) as said:
        try:
            return subprocess.Popen(
                command,
                env=os.environ if environment is None else environment,
                stdin=stdin,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=_end_with_the_supervisor if ends_with_us else None,
            )
        except OSError as error:
            raise _not_started(command[0], error) from None


def ask(
    node: str, command: Sequence[str], environment: Mapping[str, str] | None = None, *, by_ssh: bool = False
) -> str:
    """What a command prints that runs a program on `node`; `by_ssh`: it is ssh, and its status 255 is ssh's own.

    Raises `LaunchError`; that is a `SilentNodeError` if the node does not answer, or is not reached.
    """
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,  # a terminal there may be is the user's
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise _not_started(command[0], error) from None
    except subprocess.TimeoutExpired as error:
        silent = f"has not answered within {ASK_LIMIT_S:g} s"
        waits = _WAITS.search((error.stderr or b"").decode(errors="replace"))
        if waits is not None:
            raise LaunchError(f"{node}: {silent}: {last_line(waits[0])}") from None
        raise SilentNodeError(node, f"{silent}; look at it, or exclude it") from None
    if done.returncode == UNREACHABLE and by_ssh:
        raise SilentNodeError(node, "; ".join(explain_unreachable(done.stderr)))
    if done.returncode:
        lines = done.stderr.splitlines()
        refused = next(filter(_NOT_REACHED.match, lines), None)
        if refused is not None:
            raise SilentNodeError(node, last_line(refused))
        said = last_line("\n".join(line for line in lines if not OF_SRUN.match(line))) or last_line(done.stderr)
        why = said or f"'{command[0]}' ended with status {done.returncode}"
        raise LaunchError(f"{node}: {why}")
    return done.stdout


def _not_started(program: str, error: OSError) -> LaunchError:
    if isinstance(error, FileNotFoundError):
        return LaunchError(f"there is no '{program}' on this machine; install it, or choose another --starter")
    return LaunchError(f"'{program}' cannot be started: {error.strerror}")


def _end_with_the_supervisor() -> None:
    """In the new process, of Linux. The thread that starts it must be the main one: its end counts as the parent's."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """On a full disk what starters say is lost, and nothing else."""
    try:
        file = open_regular(path, "ab")
    except OSError:
        file = Path(os.devnull).open("ab")  # noqa: SIM115
    with file:
        yield file


class Grace:
    """Whether the ranks' time is over, because one of them has failed and the others do not end."""

    def __init__(self, ranks: Ranks) -> None:
        self._mark = ranks.directory.root / FIRST_FAILURE
        self._grace_s = ranks.grace_s
        self._seen: float | None = None

    def status(self) -> int:
        """Of the rank that failed first, for a starter that ends with 0 nevertheless; 0 if none has failed."""
        if not self._mark.exists():
            return 0
        try:
            found = read_json(self._mark, dict, error=LaunchError).get("status")
        except LaunchError:  # its writer had no room for more than the name
            return 1
        return found if isinstance(found, int) else 1

    def begin(self) -> None:
        """Now, unless it has begun."""
        if self._seen is None:
            self._seen = time.monotonic()

    def is_over(self) -> bool:
        """By this machine's clock, since the failure was seen here."""
        if self._seen is None and self._mark.exists():
            self.begin()
        return self._seen is not None and time.monotonic() - self._seen > self._grace_s


def wait_all(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> bool:
    """Whether all have ended within the time."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
    return True


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """End a starter's own processes at once."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
