"""Remove from many nodes what this user's ended jobs left there. What that is, and how it is known: `clean_program`."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from glmforge.errors import HostError
from glmforge.runtime.traces import ABOVE
from glmforge_ops.hosts.fanout import Answer, Fanout
from glmforge_ops.hosts.machines import ask_slurm
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer
from glmforge_ops.storage.stage import problem_of

CLEAN = RemoteProgram((WIRE, "glmforge.runtime.traces", "glmforge_ops.storage.clean_program"), oldest="3.9")
_LIMIT_S = 600.0


class Order(BaseModel):
    """What to look for: leftovers below `paths` and in the usual places, unchanged for `older_than_s` seconds.

    Stale processes are listed in any case, and ended if `processes`.
    """

    paths: list[Path] = []
    older_than_s: float = 3600.0
    dry_run: bool = False
    processes: bool = False
    traces: Path = ABOVE
    shm: Path = Path("/dev/shm")
    tmp: Path = Path("/tmp")
    jobs: list[str] | None = None
    """This user's Slurm jobs that have not ended; None if that is not known."""


class Leftover(BaseModel):
    """Something that was removed, or would be; or that looks like ours and stays."""

    kind: str
    path: str
    bytes: int
    why: str


class Stale(BaseModel):
    """A process whose job has ended; `ended`: whether it was ended now, None if that was not asked for."""

    pid: int
    began: int
    what: str
    run: str
    why: str
    ended: bool | None = None


class Cleaned(BaseModel):
    """What was found on a node; `problem` is empty if it answered."""

    host: str
    problem: str = ""
    removed: list[Leftover] = []
    kept: list[Leftover] = []
    processes: list[Stale] = []


def clean(hosts: Sequence[str], order: Order, fanout: Fanout) -> list[Cleaned]:
    """Clean all `hosts`, each of which is in the result."""
    sent = CLEAN.sent(order.model_copy(update={"jobs": living_jobs()}).model_dump(mode="json"))
    return [_read(answer) for answer in fanout.run(hosts, CLEAN.script, _LIMIT_S, sent).values()]


def living_jobs() -> list[str] | None:
    """This user's Slurm jobs that have not ended; None without Slurm."""
    try:
        return ask_slurm("squeue", "--noheader", "--me", "--format=%A").split()
    except HostError:
        return None


def _read(answer: Answer) -> Cleaned:
    if not answer.is_done:
        return Cleaned(host=answer.host, problem=problem_of(answer))
    try:
        return Cleaned(host=answer.host, **read_answer(answer))
    except (HostError, ValidationError, TypeError):
        return Cleaned(host=answer.host, problem="invalid response; check python3 there")
