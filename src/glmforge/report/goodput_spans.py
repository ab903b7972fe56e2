"""Where the time of a job's nodes went: spans, which cover every allocation exactly.

An allocation is a time during which the scheduler gave the job nodes. It is cut into spans, each with a cause, by what
the supervisor, the ranks and the run have written down; whatever those say, spans lie behind each other without a gap,
from the beginning of the allocation to its end, so that sums are exact. Times are whole microseconds.

Clocks of nodes differ by milliseconds and sometimes by more: a mark that lies before the one before it, or outside of
what it belongs to, is moved to its edge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum


class Use(StrEnum):
    """What a node's time was used for, or lost to; explained in docs/jobs.md."""

    USEFUL = "useful"
    START = "start"
    CHECKS = "checks"
    LOAD = "load"
    DATA = "data"
    EVALUATION = "evaluation"
    SAVING = "saving"
    OTHER = "other"
    RECOMPUTE = "recompute"
    HANG = "hang"
    STOP = "stop"
    BACK_OFF = "back-off"
    SPARE = "spare"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Allocation:
    """Nodes for a time."""

    begin: datetime
    end: datetime
    nodes: int
    submission: str = ""


@dataclass(frozen=True)
class Step:
    """Steps up to `last`, one or more (`count`), done at `time`, and the seconds of each part since the last record."""

    time: datetime
    last: int
    count: int
    seconds: Mapping[Use, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """What is known of an attempt. What is not known is None.

    Attributes:
        decided: when it was decided what comes next: what lies between `ended` and it are checks.
        processes: when the first of its ranks ran.
        joined: when all ranks were there.
        loaded: when training could begin.
        fault: when the first rank failed, or was asked to stop.
        steps: in the order of time.
        hung: whether it ended because nothing happened any more.
        goes_on: it has not ended: `end` is now.
    """

    number: int
    begin: datetime
    end: datetime
    nodes: int
    decided: datetime | None = None
    processes: datetime | None = None
    joined: datetime | None = None
    loaded: datetime | None = None
    fault: datetime | None = None
    steps: Sequence[Step] = ()
    hung: bool = False
    goes_on: bool = False


@dataclass(frozen=True)
class Span:
    """`nodes` nodes from `begin` to `end`, in microseconds since 1970."""

    begin: int
    end: int
    use: Use
    nodes: int
    attempt: int | None = None

    @property
    def node_microseconds(self) -> int:
        return (self.end - self.begin) * self.nodes


def spans_of(allocations: Iterable[Allocation], attempts: Sequence[Attempt]) -> list[Span]:
    """The spans of all allocations. An attempt counts where it began; one that began in none is left out."""
    found: list[Span] = []
    highest = 0
    before = 0
    for allocation in sorted(allocations, key=lambda each: each.begin):
        begin, end = max(before, _micro(allocation.begin)), _micro(allocation.end)
        inside = [attempt for attempt in attempts if begin <= _micro(attempt.begin) < end]
        spans, highest = _spans(begin, max(begin, end), allocation.nodes, inside, highest)
        found += spans
        before = max(before, end)
    return found


def _spans(begin: int, end: int, nodes: int, attempts: Sequence[Attempt], highest: int) -> tuple[list[Span], int]:
    """Of one allocation; `highest` is the highest step that was done before, and the second value the one after."""
    found: list[Span] = []
    nodes = max([nodes, *(attempt.nodes for attempt in attempts)])
    cursor, last = begin, None
    for attempt in sorted(attempts, key=lambda each: each.begin):
        starts, ends = _within(_micro(attempt.begin), cursor, end), _within(_micro(attempt.end), cursor, end)
        found += _between(cursor, starts, nodes, last)
        inner, highest = _inside(attempt, starts, max(starts, ends), highest)
        found += inner
        cursor = max(starts, ends)
        found += _span(starts, cursor, Use.SPARE, nodes - attempt.nodes, attempt.number)
        last = attempt
    if last is None:
        return [*found, *_span(cursor, end, Use.NOT_MEASURED, nodes, None)], highest
    return [*found, *_span(cursor, end, Use.STOP, nodes, last.number)], highest


def _between(begin: int, end: int, nodes: int, last: Attempt | None) -> Iterator[Span]:
    """Before the first attempt, or between two: checks until it was decided what to do, then waiting."""
    if last is None:
        yield from _span(begin, end, Use.START, nodes, None)
        return
    decided = begin if last.decided is None else _within(_micro(last.decided), begin, end)
    yield from _span(begin, decided, Use.CHECKS, nodes, last.number)
    yield from _span(decided, end, Use.BACK_OFF, nodes, last.number)


def _inside(attempt: Attempt, begin: int, end: int, highest: int) -> tuple[list[Span], int]:
    """Of an attempt: start, load, step by step, and what came behind the last of them."""
    pieces: list[tuple[int, int, Use]] = []
    cursor = begin
    started = attempt.joined or attempt.processes
    for mark, use in ((attempt.processes, Use.START), (started, Use.START), (attempt.loaded, Use.LOAD)):
        if mark is not None:
            until = _within(_micro(mark), cursor, end)
            pieces.append((cursor, until, use))
            cursor = until
    for step in attempt.steps:
        until = _within(_micro(step.time), cursor, end)
        again = max(0, min(step.last, highest) - max(0, step.last - step.count))
        pieces += _parts(cursor, until, step, again)
        cursor, highest = until, max(highest, step.last)
    pieces += _tail(attempt, cursor, end)
    return [span for first, last, use in pieces for span in _span(first, last, use, attempt.nodes, attempt.number)], (
        highest
    )


def _parts(begin: int, end: int, step: Step, again: int) -> Iterator[tuple[int, int, Use]]:
    """An interval in which steps were done: their parts, as long as there is room, and what remains.

    Of steps that were done before, `again`, the training was for nothing.
    """
    cursor = begin
    for use, seconds in step.seconds.items():
        until = min(end, cursor + round(seconds * 1e6))
        if use is Use.USEFUL:
            useless = (until - cursor) * again // step.count
            yield cursor, cursor + useless, Use.RECOMPUTE
            cursor += useless
        yield cursor, until, use
        cursor = until
    yield cursor, end, Use.OTHER


def _tail(attempt: Attempt, begin: int, end: int) -> Iterator[tuple[int, int, Use]]:
    """After the last step that is known."""
    trained = bool(attempt.steps)
    if attempt.goes_on and (trained or attempt.loaded is not None):
        yield begin, end, Use.NOT_MEASURED
        return
    if attempt.hung:
        yield begin, end, Use.HANG if trained or attempt.loaded else Use.START
        return
    if not trained and attempt.joined is None and attempt.loaded is None and attempt.processes is not None:
        fault = end if attempt.fault is None else _within(_micro(attempt.fault), begin, end)
        yield begin, fault, Use.NOT_MEASURED
        begin = fault
    elif not trained and attempt.loaded is None:
        fault = end if attempt.fault is None else _within(_micro(attempt.fault), begin, end)
        yield begin, fault, Use.LOAD if attempt.joined is not None else Use.START
        begin = fault
    yield begin, end, Use.STOP


def _span(begin: int, end: int, use: Use, nodes: int, attempt: int | None) -> Iterator[Span]:
    if end > begin and nodes > 0:
        yield Span(begin, end, use, nodes, attempt)


def _micro(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)


def _within(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
