"""What a job's ranks have printed, by attempt and rank.

Every line of a rank's log begins with its time, rank and step, written on its node (`jobs.ranks`), so that a line
still says where it is from when it stands alone. Lines of several ranks are put in the order of their times; the
clocks of nodes may differ.
"""

import heapq
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import open_regular, shown
from glmforge_ops.jobs.job import AttemptDirectory, AttemptRecord, Cause, JobDirectory, RankRecord
from glmforge_ops.jobs.state.job_files import attempt_numbers
from glmforge_ops.jobs.submit.new_job import task_numbers

_FINE = {0, 75}
"""Statuses of ranks that have not failed: ended well, or saved and gave way."""
_BY_OTHERS = {-15, -9, 143, 137}
"""Statuses of ranks that somebody ended: the first of these is not likely to be where it began."""
_CHUNK = 1 << 16
_MAX_LINE = 1 << 20


@dataclass(frozen=True)
class Log:
    """A rank's log of an attempt."""

    attempt: int
    rank: int
    path: Path


def logs_of(
    job: JobDirectory, *, attempt: int | None = None, rank: int | None = None, every: bool = False
) -> list[Log]:
    """The logs that are meant, by rank: of one rank, of all (`every`), or of the one that failed first, else of rank 0.

    Of the newest attempt that has any, unless `attempt` names one. Raises `LaunchError` if there are none.
    """
    number = _attempt(job, attempt)
    directory = job.attempt(number)
    there = ranks_with_logs(directory)
    if not there:
        raise LaunchError(
            f"{job.name}: attempt {number} has no log yet; 'glmforge jobs show {job.name}' tells its state"
        )
    if every:
        return [Log(number, each, directory.log(each)) for each in there]
    chosen = rank if rank is not None else first_to_fail(directory)
    if rank is not None and rank not in there:
        raise LaunchError(f"{job.name}: attempt {number} has no rank {rank}; it has {_ranges(there)}")
    chosen = chosen if chosen in there else there[0]
    assert chosen is not None
    return [Log(number, chosen, directory.log(chosen))]


def scheduler_logs(job: JobDirectory) -> list[Log]:
    """What the scheduler's shell and the supervisor have printed, the newest file. Raises `LaunchError`."""
    found = [path for path in job.root.glob("scheduler-*.log") if path.is_file()]
    if not found:
        raise LaunchError(f"{job.name}: its scheduler has printed nothing yet")
    return [Log(0, 0, max(found, key=lambda path: path.stat().st_mtime))]


def ranks_with_logs(directory: AttemptDirectory) -> list[int]:
    """In order."""
    if not directory.root.is_dir():
        return []
    found = (re.fullmatch(r"rank-(\d{5,9})\.log", path.name, re.ASCII) for path in directory.root.iterdir())
    return sorted(int(match[1]) for match in found if match)


def first_to_fail(directory: AttemptDirectory) -> int | None:
    """The rank that the supervisor's verdict names; without one, of those that failed by themselves the first."""
    record = AttemptRecord.read(directory.record)
    verdict = record.verdict if record is not None else None
    if verdict is not None and (verdict.rank is not None or verdict.cause is Cause.FINISHED):
        return verdict.rank
    failed = [rank for rank in read_ranks(directory) if rank.status not in {None, *_FINE}]
    first = min(failed, key=lambda each: (each.status in _BY_OTHERS, each.ended or each.began, each.rank), default=None)
    return None if first is None else first.rank


def read_ranks(directory: AttemptDirectory) -> list[RankRecord]:
    """Those whose records can be read: a node may have died while it wrote."""
    found = []
    for path in sorted(directory.root.glob("rank-*.json")):
        try:
            record = RankRecord.read(path)
        except GlmforgeError:
            continue
        if record is not None:
            found.append(record)
    return found


def pattern_of(text: str) -> re.Pattern[str]:
    """Raises `LaunchError` for what is no regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise LaunchError(f"--grep {shown(text)}: is no regular expression ({error}); put \\ before .*+?()[]") from None


def lines_of(logs: list[Log], *, pattern: re.Pattern[str] | None = None, tail: int | None = None) -> Iterator[str]:
    """The lines of the logs in the order of their times, those that `pattern` finds, the last `tail` of them."""
    lines: Iterable[str] = heapq.merge(
        *(_lines(log.path, tail if pattern is None else None) for log in logs), key=time_of
    )
    if pattern is not None:
        lines = (line for line in lines if pattern.search(line))
    yield from lines if tail is None else deque(lines, maxlen=tail)


def start_of_tail(path: Path, count: int) -> int:
    """Where the last `count` lines of a file begin, read from its end."""
    try:
        with _opened(path) as file:
            end = file.seek(0, 2)
            place, found = end, 0
            while place > 0:
                size = min(_CHUNK, place)
                file.seek(place - size)
                chunk = file.read(size)
                for at in range(size - 1, -1, -1):
                    if chunk[at] == 0x0A and place - size + at != end - 1:
                        found += 1
                        if found == count:
                            return place - size + at + 1
                place -= size
            return 0 if count else end
    except FileNotFoundError:
        return 0


def _attempt(job: JobDirectory, wanted: int | None) -> int:
    numbers = attempt_numbers(job)
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
        raise LaunchError(f"{job.name}: there is no attempt {wanted}; there are {_ranges(numbers)}")
    return wanted


def _lines(path: Path, tail: int | None) -> Iterator[str]:
    """Very long lines in pieces."""
    begin = 0 if tail is None else start_of_tail(path, tail)
    with _opened(path) as file:
        file.seek(begin)
        while line := file.readline(_MAX_LINE):
            yield text_of(line)


def _opened(path: Path) -> BinaryIO:
    """Raises `FileNotFoundError`; `LaunchError` for what is no log."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LaunchError(f"{shown(path)}: cannot be read ({error.strerror})") from None


def text_of(line: bytes) -> str:
    """What a line of a log says."""
    return line.rstrip(b"\r\n").decode("utf-8", errors="backslashreplace")


def time_of(line: str) -> str:
    """What a line begins with: times of one format and zone are in order as text."""
    return line.partition(" ")[0]


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> '0-2, 5'."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
