"""What a job's ranks have printed, by attempt and rank, and what they print until the job ends.

Every line of a rank's log begins with its time, rank and step, written on its node (`jobs.ranks`), so that a line
still says where it is from when it stands alone. Lines of several ranks are put in the order of their times; the
clocks of nodes may differ.
"""

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import LaunchError
from glmforge.files import open_regular, shown
from glmforge.observe.job_records import AttemptDirectory, AttemptRecord, Cause, JobDirectory
from glmforge_ops.jobs.new_job import task_numbers
from glmforge_ops.jobs.registry import Job

_FINE = {0, 75}
"""Statuses of ranks that have not failed: ended well, or saved and gave way."""
_BY_OTHERS = {-15, -9, 143, 137}
"""Statuses of ranks that somebody ended: the first of these is not likely to be where it began."""
_CHUNK = 1 << 16
_MAX_LINE = 1 << 20
_MAX_NEW = 4 << 20
"""Bytes that following reads of a log at once."""


def logs_of(
    job: JobDirectory, *, attempt: int | None = None, rank: int | None = None, every: bool = False
) -> list[Path]:
    """The logs that are meant, by rank: of one rank, of all (`every`), or of the one that failed first, else of rank 0.

    Of the newest attempt that has any, unless `attempt` names one. Raises `LaunchError` if there are none.
    """
    number = _attempt(job, attempt)
    directory = job.attempt(number)
    there = ranks_with_logs(directory)
    if not there:
        raise LaunchError(f"{job.name}: attempt {number} has no log yet; see 'glmforge jobs show {job.name}'")
    if every:
        return [directory.log(each) for each in there]
    if rank is not None and rank not in there:
        raise LaunchError(f"{job.name}: attempt {number} has no rank {rank}; it has {there[0]}-{there[-1]}")
    chosen = rank if rank is not None else first_to_fail(directory)
    return [directory.log(chosen if chosen in there else there[0])]


def scheduler_logs(job: JobDirectory) -> list[Path]:
    """What the scheduler's shell and the supervisor have printed, the newest file. Raises `LaunchError`."""
    found = [path for path in job.root.glob("scheduler-*.log") if path.is_file()]
    if not found:
        raise LaunchError(f"{job.name}: nothing is kept yet; what runs in the foreground prints on its terminal alone")
    return [max(found, key=lambda path: path.stat().st_mtime)]


def ranks_with_logs(directory: AttemptDirectory) -> list[int]:
    """In order."""
    names = [path.name for path in directory.root.iterdir()] if directory.root.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"rank-(\d{5,9})\.log", name, re.ASCII)))


def first_to_fail(directory: AttemptDirectory) -> int | None:
    """The rank that the supervisor's verdict names; without one, of those that failed by themselves the first."""
    record = AttemptRecord.read(directory.record)
    verdict = record.verdict if record is not None else None
    if verdict is not None and (verdict.rank is not None or verdict.cause is Cause.FINISHED):
        return verdict.rank
    failed = [rank for rank in directory.read_ranks() if rank.status not in {None, *_FINE}]
    first = min(failed, key=lambda each: (each.status in _BY_OTHERS, each.ended or each.began, each.rank), default=None)
    return None if first is None else first.rank


def pattern_of(text: str | None) -> re.Pattern[str] | None:
    """Raises `LaunchError` for an invalid regular expression."""
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise LaunchError(
            f"--grep {shown(text)}: invalid regular expression ({error}); escape .*+?()[] with \\"
        ) from None


def lines_of(logs: list[Path], *, pattern: re.Pattern[str] | None = None, tail: int | None = None) -> Iterator[str]:
    """The lines of the logs in the order of their times, those that match `pattern`, the last `tail` of them."""
    merged: Iterable[str] = heapq.merge(*(_lines(log, tail if pattern is None else None) for log in logs), key=_time_of)
    lines = (line for line in merged if pattern is None or pattern.search(line))
    yield from lines if tail is None else deque(lines, maxlen=tail)


def start_of_tail(path: Path, count: int) -> int:
    """Where the last `count` lines of a file begin, read from its end."""
    try:
        file = open_regular(path)
    except OSError:
        return 0
    with file:
        end = place = file.seek(0, 2)
        found = 0
        while place > 0:
            size = min(_CHUNK, place)
            place -= size
            file.seek(place)
            chunk = file.read(size)
            for at in range(size - 1, -1, -1):
                if chunk[at] == 0x0A and place + at != end - 1:
                    found += 1
                    if found == count:
                        return place + at + 1
        return 0 if count else end


@dataclass
class Followed:
    """A job that is followed to its end, over attempts and requeues.

    Files are looked at in every round, the scheduler is asked seldom. When an attempt ends, the rest of its logs is
    read before those of the next one.

    Attributes:
        look: finds the job anew, every `ask_every_s` seconds of `clock`.
        rank: whose log; None: of all ranks.
        tail: begin with so many of the last lines.
    """

    look: Callable[[], Job]
    rank: int | None = 0
    pattern: re.Pattern[str] | None = None
    tail: int = 10
    ask_every_s: float = 10.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.job, self._asked = self.look(), self.clock()
        self._attempt = 0
        self._said = ""
        self._at: dict[Path, int] = {}

    def rounds(self) -> Iterator[tuple[list[str], list[str]]]:
        """What is new, look by look: notes about the job, lines of its ranks. Ends when the job has and all is read."""
        first = True
        while True:
            over = self.job.state.is_over
            notes, lines = self._round(first)
            first = False
            yield notes, lines
            if over and not lines:
                return
            if not over and self.clock() - self._asked >= self.ask_every_s:
                self.job, self._asked = self.look(), self.clock()

    def _round(self, first: bool) -> tuple[list[str], list[str]]:
        notes, lines = [], []
        words = ": ".join(filter(None, [self.job.state, self.job.why]))
        if words != self._said:
            self._said = words
            step = None if self.job.files is None else self.job.files.step
            notes.append(f"{self.job.name}: {words}" + ("" if step is None else f" (step {step})"))
        numbers = [number for number in self.job.directory.attempt_numbers() if number >= self._attempt]
        for number in numbers[-1:] if first else numbers:
            directory = self.job.directory.attempt(number)
            paths = [directory.log(rank) for rank in (ranks_with_logs(directory) if self.rank is None else [self.rank])]
            if number != self._attempt:
                notes.append(f"{self.job.name}: attempt {number}")
                self._attempt = number
                self._at |= {path: start_of_tail(path, self.tail) for path in paths} if first else {}
            new = [line for path in paths for line in self._new(path)]
            lines += sorted(new, key=_time_of) if len(paths) > 1 else new
        return notes, [line for line in lines if self.pattern is None or self.pattern.search(line)]

    def _new(self, path: Path) -> list[str]:
        """Whole lines that were added since the last look."""
        at = self._at.get(path, 0)
        try:
            with open_regular(path) as file:
                file.seek(at)
                whole, line_end, _ = file.read(_MAX_NEW).rpartition(b"\n")
        except OSError:
            return []
        self._at[path] = at + len(whole) + len(line_end)
        return [_text_of(line) for line in whole.split(b"\n")] if line_end else []


def _attempt(job: JobDirectory, wanted: int | None) -> int:
    numbers = job.attempt_numbers()
    if not numbers:
        launch = job.read().launch
        if launch.array and launch.supervise:
            first = f"{job.name}-{task_numbers(launch.array)[0]}"
            raise LaunchError(f"{job.name}: is an array, whose tasks are jobs: 'glmforge jobs logs {first}'")
        if not launch.supervise:
            raise LaunchError(f"{job.name}: has no supervisor, which keeps logs by rank; add --scheduler")
        raise LaunchError(f"{job.name}: no attempt has begun; 'glmforge jobs show {job.name}' says why")
    if wanted is None:
        return next((number for number in reversed(numbers) if ranks_with_logs(job.attempt(number))), numbers[-1])
    if wanted not in numbers:
        raise LaunchError(f"{job.name}: there is no attempt {wanted}; there are {numbers[0]}-{numbers[-1]}")
    return wanted


def _lines(path: Path, tail: int | None) -> Iterator[str]:
    """Very long lines in pieces. Raises `LaunchError`."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise LaunchError(f"{shown(path)}: cannot be read ({error.strerror})") from None
    with file:
        file.seek(0 if tail is None else start_of_tail(path, tail))
        while line := file.readline(_MAX_LINE):
            yield _text_of(line)


def _text_of(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", errors="backslashreplace")


def _time_of(line: str) -> str:
    """What a line begins with: times of one format and zone are in order as text."""
    return line.partition(" ")[0]
