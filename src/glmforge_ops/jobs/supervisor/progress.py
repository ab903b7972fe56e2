"""What is heard of an attempt while it runs: its steps, its last sign of life, ranks that have ended.

Everything is read from files that others write, and as seldom as may be: a job of a thousand ranks lies on storage that
its training needs. `Progress.last_sign` is the one place that says what counts as a sign of life.
"""

import json
import os
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from glmforge.errors import LaunchError
from glmforge.files import read_end
from glmforge.observe.job_records import AttemptDirectory, RankRecord
from glmforge.observe.run import RunDirectory
from glmforge_ops.jobs.supervisor.evidence import RunEvent, first_step, read_run_events

_TAIL = 1 << 16
_LOGGED = re.compile(rb"[^ ]* [^ ]* (\d{1,17})( |$)")
Mark = tuple[int, int]


class Progress:
    """Looks at an attempt that runs. `run` is the directory of a training run, None for another program."""

    def __init__(self, directory: AttemptDirectory, run: Path | None, began: datetime) -> None:
        self.directory, self.run, self.began = directory, None if run is None else RunDirectory(run), began
        self._metrics_before = _mark(None if self.run is None else self.run.metrics)
        self._ranks: list[RankRecord] = []
        self._ranks_mark: Mark | None = None
        self._events: list[RunEvent] = []
        self._events_mark: Mark | None = None

    def ranks(self) -> list[RankRecord]:
        """As they were when a record was last written, which the time of their directory tells."""
        mark = _mark(self.directory.root)
        if mark != self._ranks_mark:
            self._ranks, self._ranks_mark = self.directory.read_ranks(), mark
        return self._ranks

    def events(self) -> list[RunEvent]:
        """Of the run, since the attempt began."""
        mark = None if self.run is None else _mark(self.run.events)
        if self.run is not None and mark != self._events_mark:
            self._events, self._events_mark = read_run_events(self.run.root, self.began), mark
        return self._events

    def first_step(self) -> int | None:
        """Steps that had been done when training began."""
        return first_step(self.events())

    def step(self) -> int | None:
        """The last training step that is known to be done in this attempt; None before the first."""
        return max(filter(None, (self._recorded_step(), logged_step(self.directory))), default=None)

    def last_sign(self) -> float:
        """When something was last written: the latest time of logs, records, metrics and marks of slow work
        (`glmforge.observe.alive`); seconds since 1970."""
        times = [self.began.timestamp()]
        with suppress(OSError), os.scandir(self.directory.root) as entries:
            times += [entry.stat().st_mtime for entry in entries if entry.name.startswith("rank-")]
        for path in (self.run.metrics, self.run.alive) if self.run is not None else ():
            with suppress(OSError):
                times.append(path.stat().st_mtime)
        return max(times)

    def _recorded_step(self) -> int | None:
        """Of the run's metrics. What was recorded before this attempt may have been cut off and be written again."""
        first = self.first_step()
        if self.run is None or first is None or _mark(self.run.metrics) == self._metrics_before:
            return None
        with suppress(LaunchError, ValueError, IndexError):
            step = json.loads(_last_lines(self.run.metrics)[-1]).get("step")
            return step if isinstance(step, int) and step > first else None
        return None


def logged_step(directory: AttemptDirectory) -> int | None:
    """That stands in the last lines of the first rank's log. Each has time, rank and step, `-` before the first."""
    with suppress(LaunchError):
        steps = (_LOGGED.match(line) for line in _last_lines(directory.log(0)))
        return max((int(step[1]) for step in steps if step is not None), default=None)
    return None


def _last_lines(path: Path) -> list[bytes]:
    """Whole ones among the last of a file. Raises `LaunchError`."""
    end = read_end(path, error=LaunchError, max_bytes=_TAIL)
    return end.split(b"\n")[1 if len(end) == _TAIL else 0 : -1]


def _mark(path: Path | None) -> Mark | None:
    try:
        state = path.stat() if path is not None else None
    except OSError:
        return None
    return None if state is None else (state.st_mtime_ns, state.st_size)
