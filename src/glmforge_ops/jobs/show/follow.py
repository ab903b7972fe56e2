"""What a job prints, as it prints it: over attempts and requeues, until it ends.

Files are looked at often, the scheduler is asked seldom. When an attempt ends, what is left of its logs is read before
those of the next one.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import GlmforgeError
from glmforge.files import open_regular
from glmforge_ops.jobs.job import AttemptRecord, JobDirectory
from glmforge_ops.jobs.show.logs import Log, ranks_with_logs, start_of_tail, text_of, time_of
from glmforge_ops.jobs.show.words import node_words, step_words
from glmforge_ops.jobs.state.find import Job
from glmforge_ops.jobs.state.job_files import attempt_numbers

_MOST_BYTES = 4 << 20
"""That are read of a log at once."""


@dataclass(frozen=True)
class Said:
    """What has come since the last look: notes about the job, lines of its ranks."""

    notes: list[str]
    lines: list[str]


class NewLines:
    """Whole lines that are added to files, from where reading began."""

    def __init__(self, pattern: re.Pattern[str] | None = None) -> None:
        self._pattern = pattern
        self._at: dict[Path, int] = {}
        self._rest: dict[Path, bytes] = {}

    def begin(self, path: Path, tail: int) -> None:
        """Leave out what stands before its last `tail` lines."""
        self._at[path] = start_of_tail(path, tail)

    def of(self, paths: list[Path]) -> list[str]:
        """What is new in these files, in the order of the lines' times."""
        found = [line for path in paths for line in self._of(path)]
        return sorted(found, key=time_of) if len(paths) > 1 else found

    def _of(self, path: Path) -> list[str]:
        try:
            with open_regular(path) as file:
                file.seek(self._at.get(path, 0))
                content = file.read(_MOST_BYTES)
        except OSError:
            return []
        self._at[path] = self._at.get(path, 0) + len(content)
        whole, line_end, rest = (self._rest.get(path, b"") + content).rpartition(b"\n")
        self._rest[path] = rest
        lines = [text_of(line) for line in whole.split(b"\n")] if line_end else []
        return [line for line in lines if self._pattern is None or self._pattern.search(line)]


class Followed:
    """A job that is being followed. `look` finds it anew; it is asked every `ask_every_s` seconds of `clock`."""

    def __init__(
        self,
        look: Callable[[], Job],
        *,
        rank: int | None = None,
        every: bool = False,
        pattern: re.Pattern[str] | None = None,
        tail: int = 10,
        ask_every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = look()
        self._look, self._rank, self._every, self._tail = look, rank or 0, every, tail
        self._lines = NewLines(pattern)
        self._ask_every_s, self._clock, self._asked = ask_every_s, clock, clock()
        self._attempt = 0
        self._said = ""

    def rounds(self) -> Iterator[Said]:
        """What is new, look by look; ends when the job has ended and all is told."""
        first = True
        while True:
            over = self.job.state.is_over
            notes, lines = self._round(first)
            first = False
            yield Said([*self._changes(), *notes], lines)
            if over and not lines:
                return
            if not over and self._clock() - self._asked >= self._ask_every_s:
                self.job, self._asked = self._look(), self._clock()

    def _changes(self) -> list[str]:
        """How the job stands, when that is another thing than the last time."""
        words = ": ".join(filter(None, [self.job.state, self.job.why]))
        if words == self._said:
            return []
        self._said = words
        step = step_words(self.job.files) if self.job.files is not None else "-"
        return [f"{self.job.name}: {words}" + (f" (step {step})" if step != "-" else "")]

    def _round(self, first: bool) -> tuple[list[str], list[str]]:
        numbers = [number for number in attempt_numbers(self.job.directory) if number >= self._attempt]
        if first:
            numbers = numbers[-1:]
        notes: list[str] = []
        lines: list[str] = []
        for number in numbers:
            paths = self._logs(number)
            if number != self._attempt:
                notes.append(_begins(self.job.directory, number))
                self._attempt = number
                for path in paths if first else ():
                    self._lines.begin(path, self._tail)
            lines += self._lines.of(paths)
        return notes, lines

    def _logs(self, attempt: int) -> list[Path]:
        directory = self.job.directory.attempt(attempt)
        ranks = ranks_with_logs(directory) if self._every else [self._rank]
        return [Log(attempt, rank, directory.log(rank)).path for rank in ranks]


def _begins(job: JobDirectory, number: int) -> str:
    try:
        record = AttemptRecord.read(job.attempt(number).record)
    except GlmforgeError:
        record = None
    where = f" on {node_words(record.nodes)}" if record is not None else ""
    return f"{job.name}: attempt {number}{where}"
