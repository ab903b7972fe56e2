"""What is known of an attempt once it has ended: gathered from files, judged elsewhere.

Nothing here decides. What a machine or a person might have left damaged is passed over and counted, since an attempt
whose node died while it wrote is exactly the one that is to be judged.
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
from glmforge_ops.jobs.supervisor.verdict.hangs import HangDump, read_dumps

_MOST_LOGS, _MOST_LINES, _TAIL, _LINE = 64, 40, 1 << 16, 600

GROW, GROW_BEYOND = "grow", "grow beyond"
"""Beside the signals that the supervisor got: it asked the ranks itself to give way, to go on with more nodes of the
allocation, or to leave it for a larger one."""


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
        lost: nodes that do not answer, or that the scheduler has given up, with what was said of them.
        faults: what checks found wrong with nodes since.
        signals: those that the supervisor got and passed on, in their order: "USR1", "TERM", "INT", or
            `GROW`, `GROW_BEYOND` for its own wish.
        silent_s: the supervisor ended it because there was no line and no step of any rank for so long.
        silent_since: when the last sign of life came of ranks that hang or were lost; seconds since 1970.
        ended_early: it ended the other ranks because one had failed.
        still_ours: whether the scheduler lets the job go on: False when it is being cancelled or is at its limit.
        near_limit: the job's time is nearly over.
        starter: the last lines that the starter itself has said; only where a rank was not started.
        orphaned: the supervisor that had started it ended before it did.
        unread: files that were damaged.
    """

    attempt: AttemptRecord
    ranks: tuple[RankRecord, ...] = ()
    events: tuple[RunEvent, ...] = ()
    hangs: tuple[HangDump, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    signals: tuple[str, ...] = ()
    silent_s: float | None = None
    silent_since: float | None = None
    ended_early: bool = False
    still_ours: bool = True
    near_limit: bool = False
    starter: tuple[str, ...] = ()
    orphaned: bool = False
    unread: tuple[str, ...] = ()

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
        """By the rank's own record; else by its place, as ranks are numbered node by node."""
        for record in self.ranks:
            if record.rank == rank:
                return record.node
        place = rank // self.attempt.ranks_per_node
        return self.attempt.nodes[place] if place < len(self.attempt.nodes) else None


def read_ranks(root: Path) -> tuple[list[RankRecord], list[str]]:
    """The records of an attempt's ranks, and the names of those that are damaged."""
    ranks, damaged = [], []
    for path in sorted(root.glob("rank-*.json")):
        try:
            record = RankRecord.read(path)
        except GlmforgeError:
            damaged.append(path.name)
            continue
        if record is not None:
            ranks.append(record)
    return ranks, damaged


def read_run_events(run: Path | None, since: datetime) -> list[RunEvent]:
    """What the run has recorded since then; nothing if it has no directory, or that cannot be read now."""
    if run is None:
        return []
    path = RunDirectory(run).events
    try:
        rows = read_jsonl(path) if path.exists() else []
    except (GlmforgeError, OSError):
        return []
    return [event for event in map(_run_event, rows) if event is not None and event.time >= _floor(since)]


def run_directory(description: JobDescription) -> Path | None:
    """Of a training job."""
    return None if description.run is None else description.directory / description.run


def gather(job: JobDirectory, description: JobDescription, attempt: AttemptRecord, **known: Any) -> Evidence:
    """What the files tell of `attempt`; `known` is what the supervisor itself has seen."""
    root = job.attempt(attempt.number).root
    ranks, damaged = read_ranks(root)
    run = run_directory(description)
    evidence = Evidence(
        attempt=attempt,
        ranks=tuple(ranks),
        events=tuple(read_run_events(run, attempt.began)),
        hangs=tuple(read_dumps(RunDirectory(run).hangs, attempt.began)) if run is not None else (),
        unread=tuple(damaged),
        **known,
    )
    return replace(evidence, starter=said_by_starter(root)) if len(ranks) < evidence.world_size else evidence


def said_by_starter(root: Path) -> tuple[str, ...]:
    """The last lines of srun, ssh or mpirun, on all nodes of an attempt; nothing where it cannot be read."""
    lines: list[str] = []
    for path in sorted(root.glob("starter*.log"))[:_MOST_LOGS]:
        try:
            said = read_end(path, error=LaunchError, max_bytes=_TAIL).decode(errors="replace").split("\n")
        except LaunchError:
            continue
        lines += [escaped(line.strip())[:_LINE] for line in said if line.strip()][-_MOST_LINES:]
    return tuple(lines)


def last_step(ranks: Sequence[RankRecord]) -> int | None:
    """The highest that a rank has done; None if none says."""
    return max((rank.last_step for rank in ranks if rank.last_step is not None), default=None)


def told_step(job: JobDirectory, attempt: int) -> int | None:
    """That an attempt is known to have done because a supervisor of it saw its first one; None if none did.

    Where the nodes of an attempt died, and its supervisor with them, this may be all that tells of its steps.
    """
    told = [event.get("step") for event in job.read_events() if _is_training(event, attempt)]
    return max((step + 1 for step in told if isinstance(step, int)), default=None)


def _is_training(event: Mapping[str, Any], attempt: int) -> bool:
    return event.get("event") == "training" and event.get("attempt") == attempt


def first_step(events: Sequence[RunEvent]) -> int | None:
    """Steps that had been done when training began."""
    return next((event.step for event in events if event.event in ("started", "resumed")), None)


def _run_event(row: Mapping[str, Any]) -> RunEvent | None:
    name, step, detail, time = (row.get(key) for key in ("event", "step", "detail", "time"))
    if not isinstance(name, str) or not isinstance(step, int) or not isinstance(time, str):
        return None
    try:
        when = datetime.fromisoformat(time)
    except ValueError:
        return None
    return RunEvent(name, step, str(detail or "")[:2000], when) if when.tzinfo is not None else None


def _floor(time: datetime) -> datetime:
    """The run's events have whole seconds."""
    return time.replace(microsecond=0)
