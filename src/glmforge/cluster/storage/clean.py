"""Remove from many nodes what ended jobs of ours left there. What that is, and how it is known: `node.leftovers`."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmforge.cluster.hosts.fanout import Fanout, Outcome
from glmforge.cluster.hosts.hostfile import LOCAL
from glmforge.cluster.storage.connection import BOOT, CLEAN, program
from glmforge.cluster.storage.leave_trace import ABOVE
from glmforge.cluster.storage.node.wire import MARK
from glmforge.errors import GlmforgeError
from glmforge.files import parse_json

OLDER_THAN_S = 3600.0
_LIMIT_S = 600.0
_SLURM_LIMIT_S = 30


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

    def as_line(self, jobs: list[str] | None) -> bytes:
        """For the node's program."""
        fields = {
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
        return json.dumps(fields).encode() + b"\n"


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
    text = program(CLEAN)
    stdin = b"%d\n" % len(text) + text + order.as_line(living_jobs())

    def script(host: str) -> str:
        return f"exec {shlex.join([sys.executable if host in LOCAL else python, '-I', '-c', BOOT])}"

    found: dict[str, Cleaned] = {}
    for answer in fanout.answers(hosts, script, _LIMIT_S, stdin):
        if answer.outcome is Outcome.DONE:
            cleaned = _read(answer.host, answer.stdout)
        else:
            cleaned = Cleaned(answer.host, f"{answer.reason}; {answer.mend}".rstrip("; "))
        found[answer.host] = cleaned
        on_answer(cleaned)
    return {host: found[host] for host in hosts}


def living_jobs() -> list[str] | None:
    """This user's Slurm jobs that have not ended; None if nobody can tell."""
    try:
        done = subprocess.run(
            ["squeue", "--noheader", "--me", "--format=%A"],
            capture_output=True,
            text=True,
            timeout=_SLURM_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split() if done.returncode == 0 else None


def _read(host: str, stdout: bytes) -> Cleaned:
    _, _, text = stdout.partition(MARK)
    try:
        answer = parse_json(text.decode(errors="replace"), dict, source=host, error=GlmforgeError)
        if "refused" in answer:
            return Cleaned(host, str(answer["refused"]))
        return Cleaned(host, "", answer["removed"], answer["kept"], answer["processes"])
    except (GlmforgeError, KeyError):
        return Cleaned(host, "gave an answer that is none; look at python3 there")
