"""What a job's ranks have printed, by attempt and rank, and what they print until the job ends.

Every line of a rank's log begins with its time, rank and step, written on its node (`jobs.ranks`). Lines of several
ranks are in the order of their times; the clocks of nodes may differ.
"""

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from glmforge.errors import LaunchError
from glmforge.files import open_regular, shown
from glmforge.observe.job_records import AttemptDirectory, AttemptRecord, Cause, JobDirectory
from glmforge_ops.jobs.registry import Job
from glmforge_ops.jobs.state import step_words

_FINE = {0, 75}
"""Statuses of ranks that have not failed: ended well, or saved and gave way."""
_BY_OTHERS = {-15, -9, 143, 137}
"""Statuses of ranks that were ended from outside: the first of these is not likely to be where it began."""
_MAX_LINE = 1 << 20
_ASK_EVERY_S = 10.0


def logs_of(
    job: JobDirectory, *, attempt: int | None = None, rank: int | None = None, every: bool = False
) -> list[Path]:
    """The log of one rank, of all (`every`), or of the rank that failed first, else of rank 0.

    Of the newest attempt that has any, unless `attempt` names one. Raises `LaunchError` if there are none.
    """
    directory = job.attempt(_attempt(job, attempt))
    there = ranks_with_logs(directory)
    if not there:
        raise LaunchError(f"{job.name}: there is no log yet; see 'glmforge jobs show {job.name}'")
    if every:
        return [directory.log(each) for each in there]
    if rank is not None and rank not in there:
        raise LaunchError(f"{job.name}: there is no rank {rank}; there are {there[0]}-{there[-1]}")
    chosen = rank if rank is not None else first_to_fail(directory)
    return [directory.log(chosen if chosen in there else there[0])]


def scheduler_logs(job: JobDirectory) -> list[Path]:
    """What the scheduler's shell and the supervisor have printed, the newest file. Raises `LaunchError`."""
    found = [path for path in job.root.glob("scheduler-*.log") if path.is_file()]
    if not found:
        raise LaunchError(f"{job.name}: there is no such log; a job in the foreground prints on its terminal alone")
    return [max(found, key=lambda path: path.stat().st_mtime)]


def ranks_with_logs(directory: AttemptDirectory) -> list[int]:
    """In order."""
    names = [path.name for path in directory.root.iterdir()] if directory.root.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"rank-(\d{5,9})\.log", name, re.ASCII)))


def first_to_fail(directory: AttemptDirectory) -> int | None:
    """The rank that the supervisor's verdict names; without one, the first of those that failed by themselves."""
    record = AttemptRecord.read(directory.record)
    verdict = record.verdict if record is not None else None
    if verdict is not None and (verdict.rank is not None or verdict.cause is Cause.FINISHED):
        return verdict.rank
    failed = [rank for rank in directory.read_ranks() if rank.status not in {None, *_FINE}]
    first = min(failed, key=lambda each: (each.status in _BY_OTHERS, each.ended or each.began, each.rank), default=None)
    return None if first is None else first.rank


def lines_of(logs: Sequence[Path], tail: int | None = None) -> Iterator[str]:
    """The lines of the logs in the order of their times, or the last `tail` of them. Raises `LaunchError`."""
    lines = heapq.merge(*map(_lines, logs), key=_time_of)
    yield from lines if tail is None else deque(lines, maxlen=tail)


def follow(
    look: Callable[[], Job], rank: int | None, tail: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[Job, list[str], list[str]]]:
    """What is new, look by look: the job, notes about it, lines of its ranks. Ends when the job has and all is read.

    Files are read in every round, the scheduler is asked seldom. When an attempt ends, the rest of its logs is read
    before those of the next one.

    Args:
        look: finds the job anew.
        rank: whose log; None: of all ranks.
        tail: begin with the given number of last lines.
    """
    job, asked = look(), clock()
    newest, said = 0, ""
    places: dict[Path, int] = {}
    first = True
    while True:
        notes, lines = [], []
        if (words := ": ".join(filter(None, [job.state, job.why]))) != said:
            said, step = words, step_words(job.files)
            notes.append(f"{job.name}: {words}" + ("" if step == "-" else f" (step {step})"))
        numbers = [number for number in job.directory.attempt_numbers() if number >= newest]
        for number in numbers[-1:] if first else numbers:
            directory = job.directory.attempt(number)
            paths = [directory.log(each) for each in (ranks_with_logs(directory) if rank is None else [rank])]
            if number != newest:
                if (record := AttemptRecord.read(directory.record)) is None:
                    continue  # it has not begun
                newest = number
                notes.append(f"{job.name}: attempt {number} on {','.join(record.nodes)}")
            new = [line for path in paths for line in deque(_new_lines(path, places), tail if first else None)]
            lines += sorted(new, key=_time_of) if len(paths) > 1 else new
        yield job, notes, lines
        first = False
        if job.state.is_over and not lines:
            return
        if not job.state.is_over and clock() - asked >= _ASK_EVERY_S:
            job, asked = look(), clock()


def _new_lines(path: Path, places: dict[Path, int]) -> Iterator[str]:
    """Whole lines that were added since the last look, which `places` remembers."""
    with suppress(OSError), open_regular(path) as file:
        file.seek(places.get(path, 0))
        while (line := file.readline()).endswith(b"\n"):
            places[path] = file.tell()
            yield _text_of(line)


def _attempt(job: JobDirectory, wanted: int | None) -> int:
    numbers = job.attempt_numbers()
    if not numbers:
        raise LaunchError(
            f"{job.name}: no attempt has begun; 'glmforge jobs show {job.name}' says why, or add --scheduler"
        )
    if wanted is None:
        return next((number for number in reversed(numbers) if ranks_with_logs(job.attempt(number))), numbers[-1])
    if wanted not in numbers:
        raise LaunchError(f"{job.name}: there is no attempt {wanted}; there are {numbers[0]}-{numbers[-1]}")
    return wanted


def _lines(path: Path) -> Iterator[str]:
    """Very long lines in pieces. Raises `LaunchError`."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise LaunchError(f"{shown(path)}: cannot be read ({error.strerror})") from None
    with file:
        while line := file.readline(_MAX_LINE):
            yield _text_of(line)


def _text_of(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", errors="backslashreplace")


def _time_of(line: str) -> str:
    """The beginning of a line: times of one format and zone are in order as text."""
    return line.partition(" ")[0]
