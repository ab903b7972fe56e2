"""What can be seen of an attempt while it runs: its steps, its last sign of life, the first rank that failed.

Everything is read from files that others write, and as seldom as may be: a job of a thousand ranks lies on storage that
its training needs. New records of ranks show in the directory's own time, so one look at that tells whether there are
any.
"""

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from glmforge.files import open_regular
from glmforge.observe.job_records import AttemptDirectory, RankRecord
from glmforge.observe.run import RunDirectory
from glmforge_ops.jobs.supervisor.verdict.evidence import RunEvent, read_ranks, read_run_events

_TAIL = 1 << 16


class Progress:
    """Looks at an attempt that runs. `run` is the directory of a training run, None for another program."""

    def __init__(self, directory: AttemptDirectory, run: Path | None, began: datetime) -> None:
        self.directory, self.run, self.began = directory, run, began
        self.first_step: int | None = None
        self._first_metrics = _metrics_mark(run)
        self._changed = 0
        self._events_mark: tuple[int, int] | None = None
        self._events: list[RunEvent] = []
        self._ranks: list[RankRecord] = []
        self._log_mark: tuple[int, int] | None = None
        self._logged: int | None = None

    def ranks(self) -> list[RankRecord]:
        """As they were when a record was last written."""
        with suppress(OSError):
            changed = self.directory.root.stat().st_mtime_ns
            if changed != self._changed:
                self._ranks, _ = read_ranks(self.directory.root)
                self._changed = changed
        return self._ranks

    def events(self) -> list[RunEvent]:
        """Of the run, since the attempt began."""
        mark = _mark(RunDirectory(self.run).events) if self.run is not None else None
        if mark != self._events_mark:
            self._events, self._events_mark = read_run_events(self.run, self.began), mark
            started = next((each for each in self._events if each.event in ("started", "resumed")), None)
            if started is not None:
                self.first_step = started.step
        return self._events

    def step(self) -> int | None:
        """The last training step that is known to be done in this attempt; None before the first."""
        known = [rank.last_step for rank in self.ranks() if rank.last_step is not None]
        known += [step for step in (self._metrics_step(), self._logged_step()) if step is not None]
        return max(known, default=None)

    def last_sign(self) -> float:
        """When something was last written: the latest time of logs, records and metrics; seconds since 1970."""
        times = [self.began.timestamp()]
        with suppress(OSError), os.scandir(self.directory.root) as entries:
            times += [entry.stat().st_mtime for entry in entries if entry.name.startswith("rank-")]
        if self.run is not None:
            with suppress(OSError):
                times.append(RunDirectory(self.run).metrics.stat().st_mtime)
        return max(times)

    def _logged_step(self) -> int | None:
        path = self.directory.log(0)
        mark = _mark(path)
        if mark is not None and mark != self._log_mark:
            self._log_mark = mark
            self._logged = logged_step(self.directory) or self._logged
        return self._logged

    def _metrics_step(self) -> int | None:
        mark = _metrics_mark(self.run)
        if self.run is None or mark is None or mark == self._first_metrics:
            return None
        with suppress(OSError, ValueError):
            lines = _last_lines(RunDirectory(self.run).metrics)
            step = json.loads(lines[-1]).get("step") if lines else None
            # What was recorded before this attempt does not count: it may have been cut off and be written again.
            if isinstance(step, int) and self.first_step is not None and step > self.first_step:
                return step
        return None


def logged_step(directory: AttemptDirectory) -> int | None:
    """That stands in the last lines of the first rank's log. Each has time, rank and step, `-` before the first."""
    with suppress(OSError):
        fields = [line.split(b" ", 3) for line in _last_lines(directory.log(0))]
        return max((int(each[2]) for each in fields if len(each) > 2 and each[2].isdigit()), default=None)
    return None


def _last_lines(path: Path) -> list[bytes]:
    """Whole ones among the last of a file."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read(2 * _TAIL).splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]


def _metrics_mark(run: Path | None) -> tuple[int, int] | None:
    return _mark(RunDirectory(run).metrics) if run is not None else None


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size
