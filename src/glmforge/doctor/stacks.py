"""What every rank of a live run on this machine is doing, by py-spy, which needs nothing of those processes.

Ranks leave a note on their machine while they live (`glmforge.runtime.traces`): process id, when it began, and the run.
A run that was started on other machines has its notes there; who holds its directory says on which.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import GlmforgeError
from glmforge.runtime.lease import newest_claim
from glmforge.runtime.process import is_alive
from glmforge.runtime.traces import ABOVE, lives, read_traces

_LIMIT_S = 60
_NO_PERMISSION = ("permission denied", "operation not permitted", "eperm")


class StacksError(GlmforgeError):
    """No process of the run here, or py-spy cannot look at it."""


@dataclass(frozen=True)
class Stacks:
    """Of one process: `rank` is None where its environment cannot be read."""

    pid: int
    rank: int | None
    text: str


def ranks_here(run: Path, above: Path = ABOVE) -> list[tuple[int, int | None]]:
    """Process ids and ranks of the run's live processes on this machine, by rank."""
    wanted = os.path.realpath(run)
    found = []
    for trace in read_traces(above).values():
        at, pid, began = trace.get("run"), trace["pid"], trace.get("began")
        if isinstance(at, str) and os.path.realpath(at) == wanted and isinstance(began, int) and lives(pid, began):
            found.append((pid, _rank_of(pid)))
    return sorted(found, key=lambda each: (each[1] is None, each[1] or 0, each[0]))


def dump_stacks(run: Path, *, native: bool = False, above: Path = ABOVE) -> list[Stacks]:
    """Raises `StacksError`, in one line that says what to do."""
    if not run.is_dir():
        raise StacksError(f"{run}: no such directory; pass the directory of a running training run")
    here = ranks_here(run, above)
    if not here:
        raise StacksError(f"{run}: no process of this run is alive on this machine{_elsewhere(run)}")
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        raise StacksError("py-spy is not installed: pip install py-spy")
    return [Stacks(pid, rank, _dump(program, pid, native=native)) for pid, rank in here]


def _dump(program: str, pid: int, *, native: bool) -> str:
    command = [program, "dump", "--pid", str(pid), *(["--native"] if native else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"py-spy timed out after {_LIMIT_S} s\n"
    if done.returncode == 0:
        return done.stdout
    reason = " ".join(done.stderr.split())
    if any(words in reason.lower() for words in _NO_PERMISSION):
        raise StacksError(
            f"py-spy may not look at process {pid}: run it as root ('sudo -E glmforge control RUN stacks'), or set "
            "kernel.yama.ptrace_scope=0, or start the container with --cap-add SYS_PTRACE"
        )
    return f"py-spy exited with status {done.returncode}: {reason[:500]}\n"


def _elsewhere(run: Path) -> str:
    found = newest_claim(run)
    if found is None or found.released or is_alive(found.holder) is False:
        return "; it is not running"
    return f"; it is held by {found}: run 'glmforge control {run} stacks' there, as the same user, on each of its nodes"


def _rank_of(pid: int) -> int | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for name in (b"RANK=", b"SLURM_PROCID="):
        for variable in variables:
            if variable.startswith(name) and variable[len(name) :].isdigit():
                return int(variable[len(name) :])
    return 0 if variables else None
