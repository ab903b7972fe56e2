"""What is known of an attempt that has ended: gathered from files, judged elsewhere.

Files that a machine might have left damaged are skipped: an attempt whose node died while it wrote is judged as well.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import escaped, read_end, read_text
from glmforge.observe.job_records import AttemptDirectory, AttemptRecord, RankRecord
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory

_MOST_LOGS, _MOST_LINES, _TAIL, _LINE = 64, 40, 1 << 16, 600
_DUMP = re.compile(r"^\d{8}T\d{6}Z-rank-(\d{5,7})\.txt$")
_COLLECTIVES = re.compile(r"== unfinished collectives ==\n(.*?)(\n== |\Z)", re.DOTALL)


@dataclass(frozen=True)
class RunEvent:
    """A line of the run's `events.jsonl`."""

    event: str
    step: int
    detail: str
    time: datetime


@dataclass
class Seen:
    """What the supervisor saw of an attempt while it ran.

    Attributes:
        status: the starter's.
        signals: those that the supervisor got and passed on, in their order: "USR1", "TERM", "INT".
        lost: nodes that do not answer, or that the scheduler has given up, with the reason.
        silent_s: the supervisor ended it because there was no line and no step of any rank for so long.
        silent_since: seconds since 1970; also where a node was lost.
        ended_early: it ended the other ranks because one had failed.
    """

    status: int | None = None
    signals: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    silent_s: float | None = None
    silent_since: float | None = None
    ended_early: bool = False


@dataclass(frozen=True)
class Evidence:
    """What is known of an attempt that has ended.

    Attributes:
        ranks: of those that were started.
        events: of the run, since the attempt began.
        dumps: ranks that wrote where they hang, and whether each was in a collective; None: not recorded.
        faults: what checks found wrong with nodes since.
        still_ours: whether the scheduler lets the job go on: False when it is being cancelled or is at its limit.
        starter: the starter's last lines; only where a rank was not started.
        not_started: why no starter could be run.
        orphaned: the supervisor that had started it ended before it did.
    """

    attempt: AttemptRecord
    ranks: tuple[RankRecord, ...] = ()
    events: tuple[RunEvent, ...] = ()
    dumps: Mapping[int, bool | None] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)
    faults: Mapping[str, str] = field(default_factory=dict)
    still_ours: bool = True
    starter: tuple[str, ...] = ()
    not_started: str = ""
    orphaned: bool = False

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


def gather(directory: AttemptDirectory, run: Path | None, attempt: AttemptRecord, **known: Any) -> Evidence:
    """From the files of `attempt` and its run; `known` is what the supervisor itself has seen."""
    ranks = tuple(directory.read_ranks())
    missing = len(ranks) < len(attempt.nodes) * attempt.ranks_per_node
    return Evidence(
        attempt=attempt,
        ranks=ranks,
        events=tuple(read_run_events(run, attempt.began)),
        dumps={} if run is None else read_dumps(RunDirectory(run).hangs, attempt.began),
        starter=_said_by_starter(directory.root) if missing else (),
        **known,
    )


def read_run_events(run: Path | None, since: datetime) -> list[RunEvent]:
    """Events of the run since then; none if it has no directory, or that cannot be read now."""
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


def read_dumps(directory: Path, since: datetime) -> dict[int, bool | None]:
    """Ranks whose watchdog has written `<run>/hangs/<time>-rank-N.txt` since then: whether each was in a collective."""
    found: dict[int, bool | None] = {}
    for path in sorted(directory.glob("*-rank-*.txt")) if directory.is_dir() else []:
        try:
            name = _DUMP.match(path.name)
            if name is None or path.stat().st_mtime < since.timestamp() - 1:
                continue
            section = _COLLECTIVES.search(read_text(path, error=LaunchError))
        except (LaunchError, OSError):  # another program's file, or one that a retention took away
            continue
        recorded = section is not None and section[1].strip() and "not recorded" not in section[1]
        found[int(name[1])] = " number " in section[1] if section is not None and recorded else None
    return found


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
