"""Remove from many nodes what ended jobs of ours left there. What that is, and how it is known: `leftovers`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmforge.errors import HostError
from glmforge.files import shown
from glmforge.runtime.traces import ABOVE
from glmforge_ops.hosts.fanout import Answer, Fanout
from glmforge_ops.hosts.machines import ask_slurm
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer

_ROOM = "glmforge_ops.storage"
CLEAN = RemoteProgram((WIRE, "glmforge.runtime.traces", f"{_ROOM}.leftovers", f"{_ROOM}.clean_program"), oldest="3.9")
OLDER_THAN_S = 3600.0
_LIMIT_S = 600.0


@dataclass(frozen=True)
class LocalRun:
    """A run's directory on nodes' own disks, and the newest step of it that is whole on shared storage.

    The caller holds the run's lock: no job of it lives.
    """

    root: Path
    newest_whole_step: int


@dataclass(frozen=True)
class Order:
    """What to look for.

    Attributes:
        paths: directories on nodes' own disks below which checkpoints and copies lie.
        older_than_s: seconds since the last change.
        processes: end stale processes, too; they are listed in any case.
    """

    paths: Sequence[Path] = ()
    runs: Sequence[LocalRun] = ()
    older_than_s: float = OLDER_THAN_S
    dry_run: bool = False
    processes: bool = False
    above_traces: Path = ABOVE
    shared_memory: Path = Path("/dev/shm")
    scratch: Path = Path("/tmp")

    def fields(self, jobs: list[str] | None) -> dict[str, Any]:
        """For the node's program."""
        return {
            "paths": [str(path) for path in self.paths],
            "runs": [{"root": str(run.root), "step": run.newest_whole_step} for run in self.runs],
            "older_than_s": self.older_than_s,
            "dry_run": self.dry_run,
            "processes": self.processes,
            "traces": str(self.above_traces),
            "shm": str(self.shared_memory),
            "tmp": str(self.scratch),
            "jobs": jobs,
        }


@dataclass
class Cleaned:
    """What was found on a node. `problem` is empty if it could be asked.

    Attributes:
        removed: kind, path, bytes and why, of everything that was removed (or would be).
        kept: path and why, of what looks like ours and stays.
        processes: stale ones: pid, what, run, why, and whether they were `ended`.
    """

    host: str
    problem: str = ""
    removed: list[dict[str, Any]] = field(default_factory=list)
    kept: list[dict[str, Any]] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return sum(int(each["bytes"]) for each in self.removed)


def clean(
    hosts: Sequence[str],
    order: Order,
    fanout: Fanout,
    python: str = "python3",
    on_answer: Callable[[Cleaned], None] = lambda cleaned: None,
) -> dict[str, Cleaned]:
    """Clean all `hosts`; each is in the answer, whatever became of it."""
    stdin = CLEAN.sent(order.fields(living_jobs()))
    found: dict[str, Cleaned] = {}

    def take(answer: Answer) -> None:
        cleaned = _read(answer) if answer.is_done else Cleaned(answer.host, answer.problem)
        found[answer.host] = cleaned
        on_answer(cleaned)

    fanout.run(hosts, lambda host: CLEAN.script(host, python), _LIMIT_S, stdin, take)
    return {host: found[host] for host in hosts}


def living_jobs() -> list[str] | None:
    """This user's Slurm jobs that have not ended; None if nobody can tell."""
    try:
        return ask_slurm("squeue", "--noheader", "--me", "--format=%A").split()
    except HostError:
        return None


def _read(answer: Answer) -> Cleaned:
    try:
        found = read_answer(answer)
        if "refused" in found:
            return Cleaned(answer.host, shown(found["refused"]))
        removed = _records(found["removed"], {"kind": str, "path": str, "bytes": int, "why": str})
        kept = _records(found["kept"], {"path": str, "why": str})
        processes = _records(found["processes"], {"pid": int, "what": str, "run": str, "why": str})
    except (HostError, KeyError):
        return Cleaned(answer.host, "invalid response; check python3 there")
    return Cleaned(answer.host, "", removed, kept, processes)


def _records(found: Any, types: Mapping[str, type]) -> list[dict[str, Any]]:
    """What a node lists, if it is what the node's program would list. Raises `HostError`, `KeyError`."""
    right = isinstance(found, list) and all(
        isinstance(each, dict) and all(isinstance(each[name], kind) for name, kind in types.items()) for each in found
    )
    if not right:
        raise HostError("lists what it should not")
    return list(found)
