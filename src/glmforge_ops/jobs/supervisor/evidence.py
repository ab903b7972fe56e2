"""What is known of an attempt that has ended: gathered from files, judged elsewhere.

What a machine might have left damaged is left out: an attempt whose node died while it wrote is to be judged as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import escaped, read_end
from glmforge.observe.job_records import AttemptRecord, JobDescription, JobDirectory, RankRecord
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge_ops.jobs.supervisor.hangs import HangDump, read_dumps

_MOST_LOGS, _MOST_LINES, _TAIL, _LINE = 64, 40, 1 << 16, 600


@dataclass(frozen=True)
class RunEvent:
    """A line of the run's `events.jsonl`."""

    event: str
    step: int
    detail: str
    time: datetime


@dataclass(frozen=True)
class Evidence:
    """What is known of an attempt that has ended.

    Attributes:
        ranks: of those that were started.
        events: of the run, since the attempt began.
        hangs: what its ranks wrote when they hung.
        lost: nodes that do not answer, or that the scheduler has given up, with the reason.
        faults: what checks found wrong with nodes since.
        signals: those that the supervisor got and passed on, in their order: "USR1", "TERM", "INT".
        silent_s: the supervisor ended it because there was no line and no step of any rank for so long.
        ended_early: it ended the other ranks because one had failed.
        still_ours: whether the scheduler lets the job go on: False when it is being cancelled or is at its limit.
        near_limit: the job's time is nearly over.
        starter: the last lines that the starter itself has said; only where a rank was not started.
        not_started: why no starter could be run.
        orphaned: the supervisor that had started it ended before it did.
    """

    attempt: AttemptRecord
    ranks: tuple[RankRecord, ...] = ()
    events: tuple[RunEvent, ...] = ()
    hangs: tuple[HangDump, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    signals: tuple[str, ...] = ()
    silent_s: float | None = None
    ended_early: bool = False
    still_ours: bool = True
    near_limit: bool = False
    starter: tuple[str, ...] = ()
    not_started: str = ""
    orphaned: bool = False

    @property
    def status(self) -> int | None:
        return self.attempt.status

    @property
    def world_size(self) -> int:
        return len(self.attempt.nodes) * self.attempt.ranks_per_node

    def event(self, name: str) -> RunEvent | None:
        """The last of this name."""
        return next((each for each in reversed(self.events) if each.event == name), None)

    def node_of(self, rank: int) -> str | None:
        """Ranks are numbered node by node."""
        place = rank // self.attempt.ranks_per_node
        return self.attempt.nodes[place] if place < len(self.attempt.nodes) else None


def gather(job: JobDirectory, description: JobDescription, attempt: AttemptRecord, **known: Any) -> Evidence:
    """What the files tell of `attempt`; `known` is what the supervisor itself has seen."""
    directory, run = job.attempt(attempt.number), description.run
    evidence = Evidence(
        attempt=attempt,
        ranks=tuple(directory.read_ranks()),
        events=tuple(read_run_events(run, attempt.began)),
        hangs=tuple(read_dumps(RunDirectory(run).hangs, attempt.began)) if run is not None else (),
        **known,
    )
    if len(evidence.ranks) >= evidence.world_size:
        return evidence
    return replace(evidence, starter=_said_by_starter(directory.root))


def read_run_events(run: Path | None, since: datetime) -> list[RunEvent]:
    """What the run has recorded since then; nothing if it has no directory, or that cannot be read now."""
    try:
        rows = read_jsonl(RunDirectory(run).events) if run is not None and RunDirectory(run).events.exists() else []
    except (GlmforgeError, OSError):
        return []
    found = [_run_event(row) for row in rows]
    return [event for event in found if event is not None and event.time >= since.replace(microsecond=0)]


def _run_event(row: Mapping[str, Any]) -> RunEvent | None:
    try:
        time = datetime.fromisoformat(row["time"])
        event = RunEvent(str(row["event"]), int(row["step"]), str(row.get("detail") or "")[:2000], time)
    except (KeyError, TypeError, ValueError):
        return None
    return event if time.tzinfo is not None else None


def first_step(events: Sequence[RunEvent]) -> int | None:
    """Steps that had been done when training began."""
    return next((event.step for event in events if event.event in ("started", "resumed")), None)


def _said_by_starter(root: Path) -> tuple[str, ...]:
    """The last lines of srun or ssh, on all nodes of an attempt."""
    lines: list[str] = []
    for path in sorted(root.glob("starter*.log"))[:_MOST_LOGS]:
        try:
            said = read_end(path, error=LaunchError, max_bytes=_TAIL).decode(errors="replace").split("\n")
        except LaunchError:
            continue
        lines += [escaped(line.strip())[:_LINE] for line in said if line.strip()][-_MOST_LINES:]
    return tuple(lines)
