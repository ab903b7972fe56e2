"""Where the time of a job's nodes went: spans, which cover every allocation exactly.

An allocation is a time during which the scheduler gave the job nodes. It is cut into spans, each with a use, by what
the supervisor, the ranks and the run have written down. Spans lie behind each other without a gap from the beginning of
the allocation to its end, so that sums are exact, in whole microseconds.

Clocks of nodes differ by milliseconds and sometimes by more: a mark that lies before the one before it, or outside of
what it belongs to, is moved to its edge.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum


class Use(StrEnum):
    """What a node's time was used for, or lost to, and what that means; defined in docs/jobs.md."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> "Use":
        use = str.__new__(cls, value)
        use._value_, use.meaning = value, meaning
        return use

    USEFUL = "useful", "steps trained for the first time"
    START = "start", "until all ranks are there: processes, imports, joining"
    CHECKS = "checks", "after an attempt: why it ended, checks of nodes"
    LOAD = "load", "checkpoint, data, until the first step can begin"
    DATA = "data", "waiting for batches"
    EVALUATION = "evaluation", "evaluations"
    SAVING = "saving", "training waited for saves"
    OTHER = "other", "between steps: records, other hooks"
    RECOMPUTE = "recompute", "steps trained again that a failure had undone"
    HANG = "hang", "from the last step until the hang was noticed and ended"
    STOP = "stop", "from the last step to the end: saving, noticing the failure, ending"
    BACK_OFF = "back-off", "waiting before the next attempt, for nodes or on purpose"
    SPARE = "spare", "nodes kept for when others fail"
    NOT_MEASURED = "not measured", "programs that report no step; what a run has not reported yet"


@dataclass(frozen=True)
class Allocation:
    """Nodes for a time."""

    begin: datetime
    end: datetime
    nodes: int
    submission: str = ""


@dataclass(frozen=True)
class Step:
    """Steps up to `last`, one or more (`count`), done at `time`, and how long each part took since the last record."""

    time: datetime
    last: int
    count: int
    parts: Mapping[Use, timedelta] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """What is known of an attempt.

    Attributes:
        marks: when its first rank ran (`processes`), all ranks were there (`joined`), training could begin (`loaded`),
            the first rank failed or was asked to stop (`fault`), and it was decided what comes next (`decided`: what
            lies between `end` and it are checks). What is not known is missing.
        steps: in the order of time.
        hung: whether it ended because nothing happened any more.
        goes_on: it has not ended: `end` is now.
    """

    number: int
    begin: datetime
    end: datetime
    nodes: int
    marks: Mapping[str, datetime] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    hung: bool = False
    goes_on: bool = False


@dataclass(frozen=True)
class Span:
    """`nodes` nodes from `begin` to `end`."""

    begin: datetime
    end: datetime
    use: Use
    nodes: int
    attempt: int | None = None

    @property
    def node_time(self) -> timedelta:
        return (self.end - self.begin) * self.nodes


def spans_of(allocations: Iterable[Allocation], attempts: Sequence[Attempt]) -> list[Span]:
    """The spans of all allocations. An attempt counts where it began; one that began in none is left out."""
    found: list[Span] = []
    highest = 0
    """Step that was done before."""
    before: datetime | None = None
    for given in sorted(allocations, key=lambda each: each.begin):
        begin = given.begin if before is None else max(before, given.begin)
        end = max(begin, given.end)
        inside = [attempt for attempt in attempts if begin <= attempt.begin < end]
        cutter = _Cutter(begin, end, max([given.nodes, *(attempt.nodes for attempt in inside)]))
        last = None
        for attempt in sorted(inside, key=lambda each: each.begin):
            if last is not None:
                cutter.until(last.marks.get("decided"), Use.CHECKS, last.number)
            cutter.until(attempt.begin, Use.START if last is None else Use.BACK_OFF, last.number if last else None)
            highest = _cut(cutter, attempt, highest)
            last = attempt
        cutter.until(end, Use.NOT_MEASURED if last is None else Use.STOP, last.number if last else None)
        found += cutter.spans
        before = end
    return found


class _Cutter:
    """Cuts the time from `cursor` to `end` of an allocation."""

    def __init__(self, cursor: datetime, end: datetime, nodes: int) -> None:
        self.cursor, self.end, self.nodes = cursor, end, nodes
        self.spans: list[Span] = []

    def until(self, time: datetime | None, use: Use, attempt: int | None, nodes: int | None = None) -> None:
        """A span from the cursor to `time`, if that is later; those of the allocation that are not in use are spare."""
        begin, end = self.cursor, self.cursor if time is None else min(max(time, self.cursor), self.end)
        used = self.nodes if nodes is None else nodes
        for name, number in ((use, used), (Use.SPARE, self.nodes - used)):
            if begin < end and number:
                self.spans.append(Span(begin, end, name, number, attempt))
        self.cursor = end


def _cut(cutter: _Cutter, attempt: Attempt, highest: int) -> int:
    """Cut an attempt: start, load, step by step, and what comes behind the last; the highest step done."""
    stop, marks = min(attempt.end, cutter.end), attempt.marks

    def until(time: datetime | None, use: Use) -> None:
        cutter.until(time and min(time, stop), use, attempt.number, attempt.nodes)

    until(marks.get("processes"), Use.START)
    until(marks.get("joined"), Use.START)
    until(marks.get("loaded"), Use.LOAD)
    for step in attempt.steps:
        again = max(0, min(step.last, highest) - max(0, step.last - step.count))
        """Steps that were done before."""
        for use, length in step.parts.items():
            begin = cutter.cursor
            length = min(length, max(min(step.time, stop) - begin, timedelta()))
            if use is Use.USEFUL:
                until(begin + length * again // step.count, Use.RECOMPUTE)
            until(begin + length, use)
        until(step.time, Use.OTHER)
        highest = max(highest, step.last)
    began = bool(attempt.steps) or "loaded" in marks
    if began:
        use = Use.NOT_MEASURED if attempt.goes_on else Use.HANG if attempt.hung else Use.STOP
    elif attempt.hung and not attempt.goes_on:
        use = Use.START
    else:  # until it failed
        own = Use.LOAD if "joined" in marks else Use.NOT_MEASURED if "processes" in marks else Use.START
        until(marks.get("fault", stop), own)
        use = Use.STOP
    until(stop, use)
    return highest
