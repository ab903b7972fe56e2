"""One timeline of a run: what its processes did and when, as bars in lanes.

The use of time is that of goodput (`goodput_spans`), for runs without a job too: each start of theirs counts as an
attempt. Bars are as exact as the records they come from: between two lines of `time.jsonl` (a second, later up to 30)
the parts of all steps stand behind each other. A save's end is when training heard of it.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.files import escaped
from glmforge.observe.job_records import Cause, JobDirectory, utc_now
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.report.goodput import attempts_of, length_of, own_allocations, run_job, steps_of, time_of
from glmforge.report.goodput_spans import Allocation, Attempt, Step, Use, spans_of

TRAINING, SAVES, STARTS = "what the nodes did", "saves in the background", "starts"
GENERATION, SCORING, SAVE, FAILED_SAVE = "generation and rewards", "scoring", "save", "failed save"
TRANSFER = "weights to servers"
PROCESS, FAILED, DOWN = "running", "failed", "not running"

_STARTS = ("started", "resumed")
_ENDS = ("finished", "stopped", "preempted", "hang", "killed")
_TOLD = (*_STARTS, "saved", "save failed", "control")
"""Events that bars show, or that say nothing of the run."""


@dataclass(frozen=True)
class Bar:
    """From `begin` to `end`, of a kind that gives its colour; `words` are what it is in detail."""

    lane: str
    kind: str
    begin: datetime
    end: datetime
    words: str = ""

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True)
class Mark:
    """An event."""

    time: datetime
    words: str


@dataclass(frozen=True)
class Timeline:
    """Lanes in order; bars of a lane may overlap only if they are saves."""

    name: str
    bars: Sequence[Bar]
    marks: Sequence[Mark] = field(default=())

    @property
    def lanes(self) -> list[str]:
        return list(dict.fromkeys(bar.lane for bar in self.bars))


def timeline_of(run: Path, *, now: datetime | None = None) -> Timeline:
    """Of a run, and of its job if it has one. Raises `GlmforgeError` if files are damaged, or nothing is recorded."""
    if not run.is_dir():
        raise GlmforgeError(f"{run}: no such directory; pass that of a run")
    directory, now = RunDirectory(run), now or utc_now()
    events, rows, metrics = (
        read_jsonl(path) if path.exists() else [] for path in (directory.events, directory.time, directory.metrics)
    )
    if (job := run_job(run)) is not None:
        records, of_job = job.read_attempts(), job.read_events()
        attempts, allocations = attempts_of(job, now), own_allocations(records, of_job, now)
        processes = list(_of_ranks(job, now))
    else:
        attempts = _own_attempts(events, rows, now)
        allocations = [Allocation(one.begin, one.end, 1) for one in attempts]
        processes = []
    if not attempts:
        raise GlmforgeError(f"{run}: has no times recorded (time.jsonl); runs of this version record them")
    bars = [
        *(Bar(STARTS, *_verdict(one), one.begin, one.end, f"start {one.number}") for one in attempts),
        *(Bar(STARTS, DOWN, one.end, two.begin) for one, two in pairwise(attempts) if one.end < two.begin),
        *_uses(allocations, attempts, metrics),
        *_saves(events),
        *processes,
    ]
    marks = [
        Mark(time, escaped(f"{event.get('event')}: {event.get('detail')}".removesuffix(": ")[:300]))
        for event in events
        if event.get("event") not in _TOLD and (time := time_of(event))
    ]
    return Timeline(run.absolute().name, bars, marks)


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """In Chrome's trace event format, which ui.perfetto.dev opens: a track for each lane, times in microseconds."""
    begin = min(bar.begin for bar in timeline.bars)

    def at(time: datetime) -> int:
        return max(0, (time - begin) // timedelta(microseconds=1))

    tracks = {lane: number for number, lane in enumerate(timeline.lanes, 1)}
    names = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": timeline.name}}]
    for lane, number in tracks.items():
        names.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": lane}})
        names.append({"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": number, "args": {"sort_index": number}})
    spans = [
        {
            "name": bar.kind,
            "cat": bar.lane,
            "ph": "X",
            "pid": 1,
            "tid": tracks[bar.lane],
            "ts": at(bar.begin),
            "dur": at(bar.end) - at(bar.begin),
            "args": {"what": bar.words},
        }
        for bar in timeline.bars
    ]
    marks = [
        {"name": mark.words, "cat": "events", "ph": "i", "s": "p", "pid": 1, "tid": 1, "ts": at(mark.time)}
        for mark in timeline.marks
    ]
    return {"traceEvents": [*names, *spans, *marks], "displayTimeUnit": "ms", "metadata": {"begin": begin.isoformat()}}


def trace_text(timeline: Timeline) -> str:
    return json.dumps(trace_events(timeline)) + "\n"


def _own_attempts(events: Sequence[Record], rows: Sequence[Record], now: datetime) -> list[Attempt]:
    """Of a run without a job: a start each, from `joined` or the event of the start to the last that is known of it."""
    timed = [(time, event) for event in events if (time := time_of(event))]
    lines = [(time, row) for row in rows if "job" not in row and (time := time_of(row))]
    begins = [time for time, row in lines if row.get("event") == "joined"]
    found = []
    for number, (begin, limit) in enumerate(zip(begins, [*begins[1:], now], strict=False), 1):
        own = [(time, row) for time, row in lines if begin <= time < limit]
        ends = [(time, event) for time, event in timed if event.get("event") in _ENDS and begin <= time < limit]
        # Events have whole seconds: what was written after one is later than it.
        last = max([time for time, _ in [*own, *ends]])
        marks = {str(row["event"]): time for time, row in own if row.get("event") in ("joined", "loaded")}
        hung = bool(ends) and ends[-1][1].get("event") == "hang"
        found.append(Attempt(number, begin, last, 1, marks, steps_of(own), hung=hung))
    return found


def _verdict(attempt: Attempt) -> tuple[str]:
    return (FAILED if attempt.hung else PROCESS,)


def _uses(allocations: Iterable[Allocation], attempts: Sequence[Attempt], metrics: Sequence[Record]) -> Iterator[Bar]:
    steps = sorted((step for attempt in attempts for step in attempt.steps), key=lambda step: step.time)
    times = [step.time for step in steps]
    for span in spans_of(allocations, attempts):
        if span.use is Use.SPARE:
            continue
        start = "" if span.attempt is None else f"start {span.attempt}, "
        place = bisect_left(times, span.end)
        step = steps[place] if place < len(steps) else None
        words = f"{start}{span.use.meaning}" + (f"; to step {step.last:,}" if step is not None else "")
        if span.use is Use.DATA and step is not None:
            yield from _of_rollouts(Bar(TRAINING, span.use.value, span.begin, span.end, words), step, metrics)
        else:
            yield Bar(TRAINING, span.use.value, span.begin, span.end, words)


def _of_rollouts(bar: Bar, step: Step, metrics: Sequence[Record]) -> Iterator[Bar]:
    """The wait for batches of reinforcement learning, cut into transfers of weights, generation, scoring and what
    remains."""
    first = bisect_left(metrics, step.last - step.count + 1, key=lambda record: record.get("step", 0))
    own = [record for record in metrics[first : first + step.count] if record.get("step", 0) <= step.last]
    begin = bar.begin
    transfer, rollout, scoring = (
        sum((length_of(record.get(f"{name}_seconds")) for record in own), timedelta())
        for name in ("transfer", "rollout", "scoring")
    )
    for length, kind in ((transfer, TRANSFER), (max(timedelta(), rollout - transfer), GENERATION), (scoring, SCORING)):
        end = min(bar.end, begin + length)
        if end > begin:
            yield Bar(bar.lane, kind, begin, end, bar.words)
        begin = end
    if begin < bar.end:
        yield Bar(bar.lane, bar.kind, begin, bar.end, bar.words)


def _saves(events: Iterable[Record]) -> Iterator[Bar]:
    for event in events:
        end = time_of(event)
        if end is not None and event.get("event") in ("saved", "save failed") and "seconds" in event:
            kind = SAVE if event["event"] == "saved" else FAILED_SAVE
            words = escaped(f"step {event.get('step')}: {event.get('detail')}")
            yield Bar(SAVES, kind, end - length_of(event["seconds"]), end, words)


def _of_ranks(job: JobDirectory, now: datetime) -> Iterator[Bar]:
    """Each process of each attempt, by rank."""
    ranks = [(rank, record) for record in job.read_attempts() for rank in job.attempt(record.number).read_ranks()]
    for rank, record in sorted(ranks, key=lambda pair: (pair[0].rank, pair[0].began)):
        ended = rank.ended or record.ended or now
        hung = record.verdict is not None and record.verdict.cause is Cause.HANG
        kind = FAILED if rank.status not in (0, None) or hung else PROCESS
        words = f"attempt {record.number}, process {rank.pid} on {rank.node}, status {rank.status}"
        yield Bar(f"rank {rank.rank}", kind, rank.began, max(rank.began, ended), escaped(words))
